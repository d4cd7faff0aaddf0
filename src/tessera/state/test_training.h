#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/llama/llama.h"
#include "tessera/models/neox/neox.h"
#include "tessera/plan/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"

namespace tessera {

inline ModelDescription tiny_llama() {
  return describe_llama(
      {.dim = 64, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 160, .vocab = 300});
}

// With rows of the head that do not count.
inline ModelDescription tiny_gpt2() {
  return describe_gpt2({.dim = 64,
                        .layers = 2,
                        .heads = 4,
                        .ffn = 160,
                        .vocab = 300,
                        .padded_vocab = 320,
                        .positions = 16});
}

// Heads of which a part is turned, as its rope is.
inline ModelDescription tiny_neox() {
  return describe_neox({.dim = 64,
                        .layers = 2,
                        .heads = 4,
                        .ffn = 160,
                        .vocab = 300,
                        .padded_vocab = 320,
                        .rotary_fraction = 0.5});
}

struct TestChoices {
  bool whole_rows = false;         // sequences are one document each, which the program is told
  bool one_microbatch = false;     // a step
  bool rounded_gradients = false;  // to bf16, of one microbatch
  bool rounded_logits = false;     // likewise, of any number
  bool as_on_gpu = false;          // the program that a GPU gets
};

// Writes all microbatches of step `number` of a tiny model: tokens and labels that depend on it,
// and one document a row.
inline void write_test_ids(Executor& executor, std::int64_t sequence_length, int number) {
  const Program& program = executor.program();
  for (std::int64_t m = 0; m < program.num_microbatches; ++m) {
    for (const Binding& input : program.inputs) {
      const auto bytes = executor.bytes(input, m);
      auto* const ids = reinterpret_cast<std::int32_t*>(bytes.data());
      for (std::size_t i = 0; i < bytes.size() / sizeof(std::int32_t); ++i) {
        const auto place = static_cast<std::int32_t>(i);
        ids[i] = input.name == "documents" ? 0
                 : input.name == "positions"
                     ? place % static_cast<std::int32_t>(sequence_length)
                     : (37 * place + 11 * number + 5 * static_cast<std::int32_t>(m)) % 300;
      }
    }
  }
}

// For tests: a tiny model, two microbatches a step, on a backend.
class TestTraining {
 public:
  static constexpr std::int64_t kSequence = 16;
  static constexpr std::int64_t kBatch = 4;

  TestTraining(ModelDescription model,
               std::unique_ptr<Backend> backend,
               DType dtype,
               const TestChoices& choices = {})
      : model_(std::move(model)),
        backend_(std::move(backend)),
        program_(compile(dtype, choices)),
        executor_(program_, *backend_),
        parameters_(parameter_inits(training_graph(model_, 2, kSequence, dtype))) {}

  void initialize() { initialize_state(executor_, parameters_, 42); }

  // The mean loss of step `number`, from 1, on tokens that depend on it.
  float step(int number, float learning_rate = 1e-2F) {
    write_test_ids(executor_, kSequence, number);
    constexpr std::int64_t kLabels = kBatch * kSequence;
    const StepOutputs outputs = TrainingStep(executor_).run(
        {.num_labels = kLabels, .learning_rate = learning_rate, .update_number = number});
    TESSERA_CHECK(outputs.applied, "step {} not applied", number);
    return outputs.loss_sum / static_cast<float>(kLabels);
  }

  std::int64_t memory_bytes() const { return program_.arena_bytes; }

  const Program& program() const { return program_; }

  std::size_t num_replayed() const { return executor_.num_replayed(); }

  // The norm of the last step's gradients, before they were clipped.
  float grad_norm() { return TrainingStep(executor_).outputs().grad_norm; }

  // What a checkpoint would hold, one tensor after the other.
  std::vector<std::byte> state() {
    std::vector<std::byte> all;
    for (const CheckpointTensor& tensor : state_tensors(executor_, parameters_)) {
      all.insert(all.end(), tensor.data.begin(), tensor.data.end());
    }
    return all;
  }

  void save(const std::filesystem::path& path) {
    save_checkpoint(path, {.model = model_.json}, state_tensors(executor_, parameters_));
  }

  void load(const std::filesystem::path& path) {
    load_state(executor_, parameters_, CheckpointReader(path));
  }

 private:
  Program compile(DType dtype, const TestChoices& choices) {
    const std::int64_t microbatch = choices.one_microbatch ? kBatch : 2;
    const Plan plan = {
        .model = model_,
        .sequence_length = kSequence,
        .microbatch = microbatch,
        .num_microbatches = kBatch / microbatch,
        .dtype = dtype,
        .logits = choices.rounded_logits ? DType::kBF16 : DType::kF32,
        .optimizer = {.gradients = choices.rounded_gradients ? DType::kBF16 : DType::kF32},
        .passes = {.whole_rows = choices.whole_rows}};
    return tessera::compile(plan, choices.as_on_gpu ? cuda_target() : cpu_target()).step;
  }

  ModelDescription model_;
  std::unique_ptr<Backend> backend_;
  Program program_;
  Executor executor_;
  std::vector<ParameterInit> parameters_;
};

}  // namespace tessera
