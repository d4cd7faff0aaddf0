// The end of a step, on a small graph that is trained as it is: what append_update() makes of the
// outputs, and a group of products of which one weight has two inputs.

#include "tessera/passes/ranks/append_update.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/autodiff/differentiate.h"
#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/base/test_error.h"
#include "tessera/ir/builder.h"
#include "tessera/ops/all_ops.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/swiglu/swiglu.h"
#include "tessera/passes/compile.h"
#include "tessera/runtime/training_step.h"

namespace tessera {
namespace {

// Hidden states from two inputs that share the weight w1: its copy beside w2 serves x, and y reads
// it where it lies.
Graph shared_weight_graph() {
  GraphBuilder builder("shared");
  const auto ids = [&](const char* name) {
    return builder.input(name,
                         {.dtype = DType::kI32,
                          .dims = {{.name = "batch", .bound = 2}, {.name = "seq", .bound = 4}}});
  };
  const Value tokens = ids("tokens");
  const Value labels = ids("labels");
  const Value inverse_labels = builder.scalar("inverse_labels");
  const auto weight = [&](const char* name, const char* rows, std::int64_t bound) {
    return builder.parameter(
        name,
        {.dtype = DType::kF32,
         .dims = {{.name = rows, .bound = bound}, {.name = "embed", .bound = 8}}},
        {.std = 0.3});
  };
  const Value x = embedding(weight("table", "vocab", 16), tokens);
  const Value w1 = weight("w1", "mlp", 8);
  const Value w2 = weight("w2", "mlp", 8);
  const Value w3 = weight("w3", "mlp", 8);
  const Value y = gelu(x);
  const Value from_x = swiglu(linear(x, w1), linear(x, w2));
  const Value from_y = swiglu(linear(y, w1), linear(y, w3));
  const Value twice = add(linear(from_x, w3), linear(from_x, w3));
  builder.output(
      "loss",
      cross_entropy(add(twice, from_y), weight("head", "vocab", 16), labels, inverse_labels),
      OutputKind::kLoss);
  return builder.take();
}

// The same with a second output, the loss of half the vectors, as a statistic; or the other way
// round.
Graph graph_of_two_outputs(bool trains_half) {
  GraphBuilder builder(shared_weight_graph());
  const Graph& graph = builder.graph();
  const Node loss = graph.nodes[graph[graph.outputs[0].value].producer.at()];
  std::vector<Value> operands;
  for (const ValueId operand : loss.operands) {
    operands.push_back(builder.handle(operand));
  }
  operands[0] = builder.emit(make_op(MultiplyAttrs{.factor = 0.5}), {operands[0]})[0];
  builder.output("half", builder.emit(loss.op, operands)[0], OutputKind::kStatistic);
  Graph both = builder.take();
  if (trains_half) {
    std::swap(both.outputs[0].value, both.outputs[1].value);
  }
  return both;
}

// Losses and weights of three steps. `statistics`, where it is not null, gets the output "half".
std::vector<float> train_shared_weight(bool group,
                                       std::int64_t num_microbatches,
                                       const Graph& graph = shared_weight_graph(),
                                       std::vector<float>* statistics = nullptr) {
  const auto backend = make_cpu_backend(1);
  const Program program = compile_training(graph,
                                           {.update = {.num_microbatches = num_microbatches},
                                            .group_gemms = group,
                                            .workspace_bytes = workspace_of(*backend)});
  Executor executor(program, *backend);
  const auto floats = [&](const Binding& binding) {
    const auto bytes = executor.bytes(binding);
    return std::span(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
  };
  std::vector<const Binding*> parameters;
  for (const Binding& state : program.states) {
    if (program[state.tensor.buffer].category == Category::kParameter) {
      parameters.push_back(&state);
      fill_normal(random_key(1, state.name), 0, {.std = 0.3F}, floats(state));
    }
  }
  std::vector<float> outcome;
  for (int step = 1; step <= 3; ++step) {
    for (const Binding& input : program.inputs) {
      for (std::int64_t m = 0; m < num_microbatches; ++m) {
        const auto bytes = executor.bytes(input, m);
        for (std::size_t i = 0; i < bytes.size() / sizeof(std::int32_t); ++i) {
          const auto id = static_cast<std::int32_t>(
              (i * 7 + static_cast<std::size_t>(m) * 3 + input.name.size()) % 16);
          std::memcpy(bytes.data() + i * sizeof id, &id, sizeof id);
        }
      }
    }
    const StepOutputs outputs = TrainingStep(executor).run(
        {.num_labels = 8 * num_microbatches, .learning_rate = 0.01, .update_number = step});
    outcome.push_back(outputs.loss_sum);
    if (statistics != nullptr) {
      statistics->push_back(executor.output_scalar("half"));
    }
  }
  for (const Binding* parameter : parameters) {
    outcome.insert(outcome.end(), floats(*parameter).begin(), floats(*parameter).end());
  }
  return outcome;
}

// x's products become one; y's, of w1 and w3, would be a group too.
TEST(GroupGemms, AWeightOfTwoInputsJoinsOneGroup) {
  for (const std::int64_t num_microbatches : {1, 2}) {
    const std::vector<float> grouped = train_shared_weight(true, num_microbatches);
    const std::vector<float> apart = train_shared_weight(false, num_microbatches);
    ASSERT_EQ(grouped.size(), apart.size());
    EXPECT_LT(apart[2], apart[0]);
    for (std::size_t i = 0; i < apart.size(); ++i) {
      EXPECT_NEAR(grouped[i], apart[i], 1e-5F * (1.0F + std::abs(apart[i]))) << i;
    }
  }
}

// A second output leaves the training as it is, bit by bit, and adds up over microbatches as the
// loss does: it is what the loss would be if both changed places.
TEST(AppendUpdate, AStatisticAddsUpAsTheLossDoes) {
  for (const std::int64_t num_microbatches : {1, 3}) {
    std::vector<float> halves;
    const std::vector<float> both =
        train_shared_weight(true, num_microbatches, graph_of_two_outputs(false), &halves);
    EXPECT_EQ(both, train_shared_weight(true, num_microbatches));
    std::vector<float> wholes;
    const std::vector<float> swapped =
        train_shared_weight(true, num_microbatches, graph_of_two_outputs(true), &wholes);
    EXPECT_EQ(halves[0], swapped[0]);
    EXPECT_EQ(wholes[0], both[0]);
    EXPECT_NE(halves[0], both[0]);
    EXPECT_NE(halves[1], halves[0]);
  }
}

// Nothing but its kind tells a gradient: neither the name of an output nor that it is no loss.
TEST(AppendUpdate, TakesOutputsByTheirKind) {
  Graph graph = differentiate(graph_of_two_outputs(false));
  graph.outputs[0].name = "main";
  graph.outputs[1].name = "gradient.of nothing";
  const Graph after = append_update(graph, {.num_microbatches = 2});
  std::map<std::string, int> roles;
  for (const ValueId state : after.sources(ValueKind::kGradient)) {
    ++roles[format("{} {}", name(after[state].state.role), after[state].state.parameter)];
  }
  EXPECT_EQ(roles,
            (std::map<std::string, int>{{"gradient head", 1},
                                        {"gradient table", 1},
                                        {"gradient w1", 1},
                                        {"gradient w2", 1},
                                        {"gradient w3", 1},
                                        {"sum ", 2}}));
  std::map<std::string, OutputKind> kinds;
  for (const Output& output : after.outputs) {
    if (!output.updates) {
      kinds[output.name] = output.kind;
    }
  }
  EXPECT_EQ(kinds,
            (std::map<std::string, OutputKind>{{"loss", OutputKind::kLoss},
                                               {"grad_norm", OutputKind::kResult},
                                               {"applied", OutputKind::kResult},
                                               {"gradient.of nothing", OutputKind::kStatistic}}));
}

TEST(AppendUpdate, RefusesNamesThatAreTaken) {
  for (const char* const name : {"loss", "grad_norm", "applied", "gradient.head", "table"}) {
    Graph graph = differentiate(graph_of_two_outputs(false));
    graph.outputs[1].name = name;
    EXPECT_EQ(
        error_of(ErrorCode::kInvalidArgument, [&] { append_update(graph, {}); }),
        format("output {} of a training graph has the name of a source or another output", name));
  }
}

TEST(AppendUpdate, RefusesResultsOfMicrobatches) {
  Graph graph = differentiate(graph_of_two_outputs(false));
  graph.outputs[1].kind = OutputKind::kResult;
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { append_update(graph, {}); }),
            "output half of a training graph is a result, expected a loss, a statistic or a "
            "gradient");
  graph.outputs.clear();
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { append_update(graph, {}); }),
            "graph shared has no output of kind loss");
}

// A forward graph's results stay each rank's.
TEST(SumOutputs, FoldsLossAndStatistics) {
  Graph graph = graph_of_two_outputs(false);
  graph.outputs.push_back({.name = "result", .value = graph.outputs[1].value});
  const Graph after = sum_outputs(graph, {.state = {.axes = {{.name = "data", .size = 2}}}});
  ASSERT_EQ(after.outputs.size(), 3);
  EXPECT_EQ(after.outputs[0].kind, OutputKind::kLoss);
  EXPECT_EQ(after.outputs[1].kind, OutputKind::kStatistic);
  EXPECT_EQ(after.outputs[2].value, graph.outputs[1].value);
}
}  // namespace
}  // namespace tessera
