// A training run has the same bits on a machine that is busy with other work as on one that is
// not: which thread took which piece, and when, decides about nothing.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/test_delays.h"
#include "tessera/models/llama/llama.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"

namespace tessera {
namespace {

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kSequence = 256;

// Large enough that most rounds have pieces for all threads.
LlamaConfig model() {
  return {.dim = 256, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 640, .vocab = 1000};
}

// The bytes of losses and of all states after some steps.
using Bits = std::map<std::string, std::vector<std::byte>>;

Bits train_steps(int threads, DType dtype) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(threads);
  const Graph graph = training_graph(describe_llama(model()), kBatch, kSequence, dtype);
  const Program program = compile_training(graph, {.workspace_bytes = workspace_of(*backend)});
  Executor executor(program, *backend);
  initialize_state(executor, parameter_inits(graph), 1);
  for (const Binding& input : program.inputs) {
    auto* const values = reinterpret_cast<std::int32_t*>(executor.bytes(input).data());
    for (std::int64_t i = 0; i < input.tensor.type.num_elements(); ++i) {
      const std::int64_t token = (i * 7919 + i * i % 104729) % model().vocab;
      values[i] = static_cast<std::int32_t>(input.name == "documents"   ? 0
                                            : input.name == "positions" ? i % kSequence
                                                                        : token);
    }
  }
  Bits bits;
  for (int step = 1; step <= 3; ++step) {
    const float loss =
        TrainingStep(executor)
            .run({.num_labels = kBatch * kSequence, .learning_rate = 1e-3, .update_number = step})
            .loss_sum;
    EXPECT_GT(loss, 0.0F);
    bits["loss " + std::to_string(step)].resize(sizeof loss);
    std::memcpy(bits["loss " + std::to_string(step)].data(), &loss, sizeof loss);
  }
  for (const Binding& state : program.states) {
    const std::span<const std::byte> bytes = executor.bytes(state);
    bits[state.name].assign(bytes.begin(), bytes.end());
  }
  return bits;
}

std::vector<std::string> differences(const Bits& a, const Bits& b) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : a) {
    if (b.at(name) != bytes) {
      names.push_back(name);
    }
  }
  return names;
}

class DelayedThreads : public testing::TestWithParam<DType> {};

TEST_P(DelayedThreads, GiveTheBitsOfThreadsThatAreNot) {
  for (const int threads : {2, 3}) {
    const Bits expected = train_steps(threads, GetParam());
    const Delays delays;
    for (int run = 0; run < 2; ++run) {
      EXPECT_EQ(differences(expected, train_steps(threads, GetParam())), std::vector<std::string>())
          << threads << " threads";
    }
    EXPECT_GT(delays.count(), 10);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         DelayedThreads,
                         testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace tessera
