// A step computes the same bits in whatever order its calls come, as long as the microbatches of
// each segment rise: several are in flight then, each with a stash of its own.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/format.h"
#include "tessera/passes/compile.h"
#include "tessera/passes/memory/plan_memory.h"
#include "tessera/passes/program/assign_slots.h"
#include "tessera/plan/graphs.h"
#include "tessera/program/test_in_flight.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/test_training.h"
#include "tessera/state/training_state.h"

namespace tessera {
namespace {

constexpr std::int64_t kMicrobatches = 6;
constexpr std::int64_t kRows = 2;
constexpr std::int64_t kLength = 8;
constexpr int kSteps = 3;

CallOrder random_order(std::uint32_t seed) {
  std::mt19937 random(seed);
  CallOrder order;
  std::int64_t forwards = 0;
  std::int64_t backwards = 0;
  while (backwards < kMicrobatches) {
    const bool is_forward =
        forwards < kMicrobatches && (forwards == backwards || random() % 2 == 0);
    (is_forward ? forwards : backwards) += 1;
    order.push_back(is_forward);
  }
  return order;
}

std::int64_t most_in_flight(const CallOrder& order) {
  std::int64_t now = 0;
  std::int64_t most = 0;
  for (const bool is_forward : order) {
    now += is_forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

Program reordered(Program program, const CallOrder& order) {
  call_in_order(program, order);
  return plan_memory(assign_slots(std::move(program)));
}

// Loss, norm and state after a few steps, as bytes.
std::string run(const Program& program, const Graph& graph, Backend& backend) {
  verify(program);
  Executor executor(program, backend);
  initialize_state(executor, parameter_inits(graph), 42);
  std::string all;
  for (int step = 1; step <= kSteps; ++step) {
    write_test_ids(executor, kLength, step);
    const StepOutputs outputs =
        TrainingStep(executor).run({.num_labels = kMicrobatches * kRows * kLength,
                                    .learning_rate = 1e-2,
                                    .update_number = step});
    EXPECT_TRUE(outputs.applied);
    all += format("{:a} {:a} ", outputs.loss_sum, outputs.grad_norm);
  }
  for (const Binding& state : program.states) {
    if (program[state.tensor.buffer].category != Category::kGradient) {
      const auto bytes = executor.bytes(state);
      all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
  return all;
}

TEST(InFlight, AnyOrderOfCallsComputesTheSameBits) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  for (const ModelDescription& model : {tiny_llama(), tiny_gpt2()}) {
    const Graph graph = training_graph(model, kRows, kLength, DType::kF32);
    CompileOptions options = {.workspace_bytes = workspace_of(*backend)};
    options.update.num_microbatches = kMicrobatches;
    options.update.clip = 1.0;
    const Program program = compile_training(graph, options);
    const std::string expected = run(program, graph, *backend);
    std::vector<CallOrder> orders;
    for (const std::int64_t in_flight : {1, 2, 4, 6}) {
      orders.push_back(one_forward_one_backward(kMicrobatches, in_flight));
    }
    for (std::uint32_t seed = 0; seed < 6; ++seed) {
      orders.push_back(random_order(seed));
    }
    for (std::size_t i = 0; i < orders.size(); ++i) {
      SCOPED_TRACE(format("order {}", i));
      const Program other = reordered(program, orders[i]);
      const auto stash = std::ranges::find(other.pools, "stash", &Pool::name);
      ASSERT_NE(stash, other.pools.end());
      EXPECT_EQ(stash->slots, most_in_flight(orders[i]));
      EXPECT_EQ(run(other, graph, *backend), expected);
    }
  }
}

}  // namespace
}  // namespace tessera
