#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/models/llama/llama.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"

namespace tessera {

// The training program of a Llama on the CPU, on random tokens.
class OwnTraining {
 public:
  OwnTraining(const LlamaConfig& model,
              std::int64_t batch,
              std::int64_t seq,
              DType dtype,
              int threads,
              const RecomputeRules& recompute = {})
      : backend_(make_cpu_backend(threads)),
        tokens_(batch * seq),
        graph_(training_graph(describe_llama(model), batch, seq, dtype)),
        program_(compile_training(
            graph_, {.recompute = recompute, .workspace_bytes = workspace_of(*backend_)})),
        executor_(program_, *backend_) {
    initialize_state(executor_, parameter_inits(graph_), 1);
    std::uint32_t random = 12345;
    for (const Binding& input : program_.inputs) {
      auto* values = reinterpret_cast<std::int32_t*>(executor_.bytes(input).data());
      for (std::int64_t i = 0; i < input.tensor.type.num_elements(); ++i) {
        random = random * 1664525U + 1013904223U;
        const auto token =
            static_cast<std::int32_t>((random >> 8U) % static_cast<std::uint32_t>(model.vocab));
        values[i] = input.name == "documents"   ? 0
                    : input.name == "positions" ? static_cast<std::int32_t>(i % seq)
                                                : token;
      }
    }
  }

  // Seconds of one more step.
  double step() {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    TrainingStep(executor_).run(
        {.num_labels = tokens_, .learning_rate = 3e-4, .update_number = ++updates_});
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  Backend& backend() { return *backend_; }

  const Program& program() const { return program_; }

  Executor& executor() { return executor_; }

 private:
  std::unique_ptr<Backend> backend_;
  std::int64_t tokens_;  // of a step
  Graph graph_;
  Program program_;
  Executor executor_;
  int updates_ = 0;
};

}  // namespace tessera
