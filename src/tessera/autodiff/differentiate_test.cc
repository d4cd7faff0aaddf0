#include "tessera/autodiff/differentiate.h"

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/testing/reference_executor.h"
#include "tessera/ops/testing/sample.h"
#include "tessera/ops/testing/tolerance.h"

namespace tessera {
namespace {

using conformance::HostTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kLinearLoss = R"(graph "linear" {
  %0: f32[rows=2, embed=3] = input "x"
  %1: i32[rows=2] = input "labels"
  %2: f32[] = scalar "inverse_labels"
  %3: f32[embed2=3, embed=3] = parameter "w" normal(0, 0.02, 0)
  %4: f32[vocab=5, embed2=3] = parameter "head" normal(0, 0.02, 0)
  %5: f32[rows=2, embed2=3] = matmul {transpose_b=true}(%0, %3) @forward
  %6: f32[] = cross_entropy(%5, %4, %1, %2) @forward
  output "loss" loss = %6
}
)";

TEST(Differentiate, AppendsBackwardWithWeightGradientsApart) {
  EXPECT_EQ(to_string(differentiate(parse_graph(kLinearLoss))), R"(graph "linear" {
  %0: f32[rows=2, embed=3] = input "x"
  %1: i32[rows=2] = input "labels"
  %2: f32[] = scalar "inverse_labels"
  %3: f32[embed2=3, embed=3] = parameter "w" normal(0, 0.02, 0)
  %4: f32[vocab=5, embed2=3] = parameter "head" normal(0, 0.02, 0)
  %5: f32[rows=2, embed2=3] = matmul {transpose_b=true}(%0, %3) @forward
  %6: f32[] = cross_entropy(%5, %4, %1, %2) @forward
  %7: f32[rows=2, embed2=3], %8: f32[vocab=5, embed2=3] = cross_entropy {loss=false, gradients=true}(%5, %4, %1, %2) @backward
  %9: f32[embed2=3, embed=3] = matmul {transpose_a=true}(%7, %0) @weight_gradient
  output "loss" loss = %6
  output "gradient.w" gradient of "w" = %9
  output "gradient.head" gradient of "head" = %8
}
)");
}

// Whatever it is called: nothing of a statistic flows back.
TEST(Differentiate, LeavesStatisticsAlone) {
  Graph graph = parse_graph(kLinearLoss);
  const Graph plain = differentiate(graph);
  graph.outputs[0].name = "main";
  graph.outputs.push_back(
      {.name = "gradient.w", .value = graph.outputs[0].value, .kind = OutputKind::kStatistic});
  Graph gradients = differentiate(graph);
  EXPECT_EQ(gradients.outputs[1], graph.outputs[1]);
  gradients.outputs.erase(gradients.outputs.begin() + 1);
  gradients.outputs[0].name = "loss";
  EXPECT_TRUE(equal(gradients, plain)) << to_string(gradients);
}

TEST(Differentiate, Errors) {
  const auto message = [](const Graph& graph) {
    try {
      differentiate(graph);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  Graph graph = parse_graph(kLinearLoss);
  graph.outputs[0].kind = OutputKind::kStatistic;
  EXPECT_THAT(message(graph), HasSubstr("has no output of kind loss to differentiate"));
  graph.outputs[0].kind = OutputKind::kLoss;
  graph.add_parameter("unused", {.dtype = DType::kF32, .dims = {}});
  EXPECT_THAT(message(graph), HasSubstr("parameter unused does not reach the loss"));
}

// A gradient that an op leaves out must not vanish: the parameter would silently stay as it is.
TEST(Differentiate, RefusesAnOperandWithoutGradient) {
  const Graph graph = parse_graph(R"(graph "scaled" {
  %0: f32[rows=2, embed=3] = input "x"
  %1: i32[rows=2] = input "labels"
  %2: f32[] = scalar "inverse_labels"
  %3: f32[] = parameter "factor" normal(1, 0, 0)
  %4: f32[vocab=5, embed=3] = parameter "head" normal(0, 0.02, 0)
  %5: f32[rows=2, embed=3] = scale(%0, %3) @forward
  %6: f32[] = cross_entropy(%5, %4, %1, %2) @forward
  output "loss" loss = %6
}
)");
  try {
    differentiate(graph);
    FAIL() << "differentiated a factor of scale";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("node 0: scale has no gradient for its operand 1"));
  }
}

ValueId output_of(const Graph& graph, std::string_view name) {
  for (const Output& output : graph.outputs) {
    if (output.name == name) {
      return output.value;
    }
  }
  ADD_FAILURE() << "no output " << name;
  return {};
}

// %5 is read by four operands, w by two products, the table by a lookup and as the head; the path
// through "bias" meets no parameter before %9.
constexpr std::string_view kManyUses = R"(graph "many" {
  %0: i32[rows=6] = input "ids"
  %1: i32[rows=6] = input "labels"
  %2: f32[] = scalar "inverse_labels"
  %3: f32[vocab=5, embed=4] = parameter "table" normal(0, 1, 0)
  %4: f32[embed2=4, embed=4] = parameter "w" normal(0, 1, 0)
  %13: f32[rows=6, embed=4] = input "bias"
  %5: f32[rows=6, embed=4] = embedding(%3, %0) @forward layer 0
  %6: f32[rows=6, embed2=4] = matmul {transpose_b=true}(%5, %4) @forward layer 0
  %7: f32[rows=6, embed=4] = mul(%5, %5) @forward layer 1
  %8: f32[rows=6, embed=4] = gelu(%13) @forward layer 1
  %9: f32[rows=6, embed=4] = mul(%7, %8) @forward layer 1
  %10: f32[rows=6, embed2=4] = matmul {transpose_b=true}(%9, %4) @forward layer 2
  %11: f32[rows=6, embed2=4] = add(%6, %10) @forward layer 2
  %12: f32[rows=6, embed2=4] = add(%11, %5) @forward layer 2
  %14: f32[] = cross_entropy(%12, %3, %1, %2) @forward
  output "loss" loss = %14
}
)";

// Every element of every parameter, in f64, against central differences of the loss.
TEST(Differentiate, AgreesWithFiniteDifferencesWhereValuesHaveManyUses) {
  const Graph graph = differentiate(parse_graph(kManyUses));
  std::map<ValueId, HostTensor> sources;
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const ValueInfo& value = graph.values[i];
    if (value.kind == ValueKind::kResult) {
      continue;
    }
    HostTensor content(conformance::reference_type(value.type));
    const auto fill = value.name == "inverse_labels" ? conformance::constant(1.0)
                      : value.name == "ids"          ? conformance::integers(5)
                      : value.name == "labels"       ? conformance::labels(5)
                                                     : conformance::normal();
    fill(i, content);
    sources.emplace(ValueId::of(i), std::move(content));
  }
  const ValueId loss = output_of(graph, "loss");
  const auto values = conformance::run_graph(graph, sources, {});
  const auto loss_at = [&](ValueId parameter, std::size_t element, double shift) {
    std::map<ValueId, HostTensor> moved = sources;
    moved.at(parameter).f64()[element] += shift;
    return conformance::run_graph(graph, moved, {})[loss.at()].f64()[0];
  };
  constexpr double kStep = 1e-4;
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    const ValueId gradient = output_of(graph, gradient_name(graph[parameter].name));
    HostTensor expected(conformance::reference_type(graph[gradient].type));
    for (std::size_t i = 0; i < expected.f64().size(); ++i) {
      expected.f64()[i] =
          (loss_at(parameter, i, kStep) - loss_at(parameter, i, -kStep)) / (2 * kStep);
    }
    EXPECT_EQ(
        conformance::difference(values[gradient.at()], expected, conformance::kFiniteDifference),
        std::nullopt)
        << graph[parameter].name;
  }
}

// The table's uses are its lookup and the head, and w's two products; %5, no parameter, has one
// gradient as ever.
TEST(Differentiate, GivesUsesApart) {
  const Graph summed = differentiate(parse_graph(kManyUses));
  const Graph apart = differentiate(parse_graph(kManyUses), GradientUses::kApart);
  std::vector<std::string> names;
  for (const Output& output : apart.outputs) {
    names.push_back(format("{} {}", output.name, output.use));
  }
  EXPECT_THAT(names,
              ElementsAre("loss 0",
                          "gradient.table.use0 0",
                          "gradient.table.use1 1",
                          "gradient.w.use0 0",
                          "gradient.w.use1 1"));
  const auto op_of = [&](std::string_view name) {
    return info(*apart.nodes[apart[output_of(apart, name)].producer.at()].op).name;
  };
  EXPECT_EQ(op_of("gradient.table.use0"), "embedding_backward");
  EXPECT_EQ(op_of("gradient.table.use1"), "cross_entropy");
  // Nothing but the two additions is missing: first use and second, in this order.
  ASSERT_EQ(apart.nodes.size() + 2, summed.nodes.size());
  for (std::size_t i = 0; i < apart.nodes.size(); ++i) {
    EXPECT_TRUE(equal(*apart.nodes[i].op, *summed.nodes[i].op));
    EXPECT_EQ(apart.nodes[i].operands, summed.nodes[i].operands);
  }
  for (const std::string name : {"table", "w"}) {
    const ValueId sum = output_of(summed, gradient_name(name));
    EXPECT_EQ(summed.nodes[summed[sum].producer.at()].operands,
              (std::vector<ValueId>{output_of(apart, gradient_name(name, 0)),
                                    output_of(apart, gradient_name(name, 1))}));
  }
}

// Both operands of a node are uses; one use has the name and the text that it always had.
TEST(Differentiate, EveryOperandIsAUse) {
  const Graph squares = parse_graph(R"(graph "squares" {
  %0: i32[rows=2] = input "labels"
  %1: f32[] = scalar "inverse_labels"
  %2: f32[rows=2, embed=3] = parameter "w" normal(0, 1, 0)
  %3: f32[vocab=5, embed=3] = parameter "head" normal(0, 1, 0)
  %4: f32[rows=2, embed=3] = mul(%2, %2) @forward
  %5: f32[] = cross_entropy(%4, %3, %0, %1) @forward
  output "loss" loss = %5
}
)");
  const Graph apart = differentiate(squares, GradientUses::kApart);
  ASSERT_EQ(apart.outputs.size(), 4);
  EXPECT_EQ(apart.outputs[1].name, "gradient.w.use0");
  EXPECT_EQ(apart.outputs[2].name, "gradient.w.use1");
  EXPECT_EQ(apart.outputs[3].name, "gradient.head");
  EXPECT_TRUE(equal(differentiate(parse_graph(kLinearLoss), GradientUses::kApart),
                    differentiate(parse_graph(kLinearLoss))));
}

TEST(Differentiate, BackwardNodesBelongToTheirForwardNodesLayer) {
  const Graph forward = parse_graph(kManyUses);
  const Graph graph = differentiate(forward);
  std::map<std::int32_t, int> products;  // backward matmuls by layer
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (i < forward.nodes.size()) {
      EXPECT_TRUE(equal(*node.op, *forward.nodes[i].op));
      continue;
    }
    EXPECT_NE(node.phase, Phase::kForward);
    EXPECT_NE(node.phase, Phase::kUpdate);
    // Nothing depends on a parameter before the gelu: it has no gradient.
    EXPECT_NE(info(*node.op).name, "gelu_backward");
    products[node.layer] += info(*node.op).name == "matmul" ? 1 : 0;
  }
  EXPECT_EQ(products[0], 2);  // input and weight
  EXPECT_EQ(products[1], 0);
  EXPECT_EQ(products[2], 2);
}

TEST(Differentiate, GradientsOfParametersAreF32) {
  std::string text(kManyUses);
  const auto replace_all = [&](std::string_view from, std::string_view to) {
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + 1)) {
      text.replace(at, from.size(), to);
    }
  };
  replace_all(": f32[rows", ": bf16[rows");
  replace_all(": f32[vocab", ": bf16[vocab");
  replace_all(": f32[embed2", ": bf16[embed2");
  replace_all("{transpose_b=true}", "{transpose_b=true, dtype=bf16}");
  const Graph graph = differentiate(parse_graph(text));
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    EXPECT_EQ(graph[parameter].type.dtype, DType::kBF16);
    EXPECT_EQ(graph[output_of(graph, gradient_name(graph[parameter].name))].type.dtype,
              DType::kF32);
  }
}

}  // namespace
}  // namespace tessera
