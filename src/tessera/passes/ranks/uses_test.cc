// Gradients of a parameter with several uses: over microbatches each use adds up its own, and the
// update adds the sums, in the order of use.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/autodiff/differentiate.h"
#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/format.h"
#include "tessera/ir/builder.h"
#include "tessera/ops/all_ops.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/passes/compile.h"
#include "tessera/passes/ranks/append_update.h"
#include "tessera/runtime/training_step.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kWidth = 4;
constexpr std::int64_t kVocab = 5;

TensorType one_row(DType dtype) {
  return {.dtype = dtype, .dims = {{.name = "batch", .bound = 1}, {.name = "seq", .bound = 1}}};
}

Value weight(GraphBuilder& builder, const char* name, const char* rows, std::int64_t bound) {
  return builder.parameter(
      name,
      {.dtype = DType::kF32,
       .dims = {{.name = rows, .bound = bound}, {.name = "embed", .bound = kWidth}}},
      {.std = 0.3});
}

// One row: w times a large input and w times a small one, to a head.
Graph two_products() {
  GraphBuilder builder("two products");
  TensorType hidden = one_row(DType::kF32);
  hidden.dims.push_back({.name = "embed", .bound = kWidth});
  const Value large = builder.input("large", hidden);
  const Value small = builder.input("small", hidden);
  const Value labels = builder.input("labels", one_row(DType::kI32));
  const Value inverse_labels = builder.scalar("inverse_labels");
  const Value w = weight(builder, "w", "mlp", kWidth);
  const Value head = weight(builder, "head", "vocab", kVocab);
  builder.output(
      "loss",
      cross_entropy(add(linear(large, w), linear(small, w)), head, labels, inverse_labels),
      OutputKind::kLoss);
  return builder.take();
}

// A table that is looked up twice and is the head, and a weight with one use.
Graph tied() {
  GraphBuilder builder("tied");
  const Value tokens = builder.input("tokens", one_row(DType::kI32));
  const Value labels = builder.input("labels", one_row(DType::kI32));
  const Value inverse_labels = builder.scalar("inverse_labels");
  const Value table = weight(builder, "table", "vocab", kVocab);
  const Value w = weight(builder, "w", "embed", kWidth);
  const Value x = linear(embedding(table, tokens), w);
  builder.output("loss",
                 cross_entropy(add(x, embedding(table, labels)), table, labels, inverse_labels),
                 OutputKind::kLoss);
  return builder.take();
}

float head_weight(std::int64_t row, std::int64_t column) {
  return static_cast<float>((row + 1) * (2 * column - 3)) / 8;
}

// The gradient of what the head reads where all logits are equal, over two labels in all.
double hidden_gradient(std::int64_t label, std::int64_t column) {
  double sum = 0.0;
  for (std::int64_t v = 0; v < kVocab; ++v) {
    sum += (1.0 / kVocab - (v == label ? 1.0 : 0.0)) / 2 * double{head_weight(v, column)};
  }
  return sum;
}

// Of two microbatches with the same label, the second has the first one's large input with the
// other sign: what remains is the gradient of the small inputs, of which no sum over a microbatch
// keeps a bit.
TEST(GradientsByUse, KeepWhatSumsOfMicrobatchesLose) {
  constexpr float kLarge = 0x1p30F;
  constexpr std::int32_t kLabel = 4;
  const auto backend = make_cpu_backend(1);
  const Program program =
      compile_training(two_products(),
                       {.update = {.beta1 = 0.0, .clip = 1e30, .num_microbatches = 2},
                        .workspace_bytes = workspace_of(*backend)});
  Executor executor(program, *backend);
  const auto fill = [&](const Binding& binding, std::int64_t microbatch, const auto& value) {
    auto* const floats = reinterpret_cast<float*>(executor.bytes(binding, microbatch).data());
    for (std::int64_t i = 0; i < binding.tensor.type.num_elements(); ++i) {
      floats[i] = value(i);
    }
  };
  // The weight is zero, so that logits are.
  fill(find_binding(program.states, "w"), 0, [](std::int64_t) { return 0.0F; });
  fill(find_binding(program.states, "head"), 0, [](std::int64_t i) {
    return head_weight(i / kWidth, i % kWidth);
  });
  for (std::int64_t m = 0; m < 2; ++m) {
    const float sign = m == 0 ? 1.0F : -1.0F;
    fill(find_binding(program.inputs, "large"), m, [&](std::int64_t i) {
      return sign * kLarge * static_cast<float>(i + 1);
    });
    fill(find_binding(program.inputs, "small"), m, [](std::int64_t i) {
      return static_cast<float>(i + 1);
    });
    std::memcpy(
        executor.bytes(find_binding(program.inputs, "labels"), m).data(), &kLabel, sizeof kLabel);
  }
  ASSERT_TRUE(TrainingStep(executor).run({.num_labels = 2}).applied);
  // With beta1 = 0 and nothing clipped, the first moment is the gradient.
  const auto bytes = executor.bytes(find_binding(program.states, "moment1.w"));
  const auto* const found = reinterpret_cast<const float*>(bytes.data());
  for (std::int64_t row = 0; row < kWidth; ++row) {
    for (std::int64_t column = 0; column < kWidth; ++column) {
      const double small = hidden_gradient(kLabel, row) * static_cast<double>(column + 1);
      EXPECT_NEAR(found[row * kWidth + column], 2 * small, 1e-6 * std::abs(2 * small))
          << row << ", " << column;
      const auto h = static_cast<float>(small);
      const float e = h * kLarge;
      EXPECT_NE(h, 0.0F);
      EXPECT_EQ((e + h) + (-e + h), 0.0F);
    }
  }
}

std::vector<std::string> nodes_of(const Graph& graph, Phase phase) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) {
    if (node.phase == phase) {
      names.emplace_back(info(*node.op).name);
    }
  }
  return names;
}

std::map<std::string, std::int64_t> count_names(const std::vector<std::string>& names) {
  std::map<std::string, std::int64_t> counts;
  for (const std::string& name : names) {
    ++counts[name];
  }
  return counts;
}

Graph updated(std::size_t grad, std::size_t optimizer) {
  return append_update(
      differentiate(tied(), GradientUses::kApart),
      {.num_microbatches = 2,
       .state = {.axes = {{.name = "data", .size = 2}}, .grad = grad, .optimizer = optimizer}});
}

std::vector<std::string> accumulators(const Graph& graph) {
  std::vector<std::string> all;
  for (const ValueId state : graph.sources(ValueKind::kGradient)) {
    all.push_back(format("{}: {}", graph[state].name, to_string(graph[state].type)));
  }
  return all;
}

// Each use adds up whole gradients, and their sum is what is reduced: as often as of one use.
TEST(GradientsByUse, AreReducedOnceWhereWholeGradientsAddUp) {
  for (const std::size_t optimizer : {0, 1}) {
    const Graph graph = updated(0, optimizer);
    EXPECT_THAT(accumulators(graph),
                UnorderedElementsAre("loss: f32[]",
                                     "gradient.table.use0: f32[vocab=5, embed=4]",
                                     "gradient.table.use1: f32[vocab=5, embed=4]",
                                     "gradient.table.use2: f32[vocab=5, embed=4]",
                                     "gradient.w: f32[embed=4, embed=4]"));
    auto update = count_names(nodes_of(graph, Phase::kUpdate));
    EXPECT_EQ(update["add"], 2);
    EXPECT_EQ(update["reduce_slices"], optimizer == 1 ? 2 : 0);
    EXPECT_EQ(update["all_reduce_slices"], optimizer == 1 ? 0 : 2);
    EXPECT_EQ(update["adamw"], 2);
    EXPECT_EQ(count_names(nodes_of(graph, Phase::kWeightGradient))["reduce_slices"], 0);
  }
}

// Slices of each use add up, so that each use is reduced in every microbatch.
TEST(GradientsByUse, AreReducedApartWhereSlicesAddUp) {
  const Graph graph = updated(1, 1);
  EXPECT_THAT(accumulators(graph),
              UnorderedElementsAre("loss: f32[]",
                                   "gradient.table.use0: f32[slice=256]",
                                   "gradient.table.use1: f32[slice=256]",
                                   "gradient.table.use2: f32[slice=256]",
                                   "gradient.w: f32[slice=256]"));
  auto update = count_names(nodes_of(graph, Phase::kUpdate));
  EXPECT_EQ(update["add"], 2);
  EXPECT_EQ(update["reduce_slices"] + update["all_reduce_slices"], 0);
  std::int64_t reductions = 0;
  for (const Node& node : graph.nodes) {
    reductions += node.op->get_if<ReduceSlicesAttrs>() != nullptr ? 1 : 0;
  }
  EXPECT_EQ(reductions, 4);
}

// ((first + second) + third), over the first one's memory.
TEST(GradientsByUse, TheirSumTakesNoMemory) {
  const Program program = compile_training(tied(), {.update = {.num_microbatches = 2}});
  const auto state = [&](std::int32_t use) {
    return find_binding(program.states, gradient_name("table", use)).tensor;
  };
  std::vector<const Instruction*> sums;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      if (segment.code.action == Action::kUpdate && instruction.op->get_if<AddAttrs>() != nullptr) {
        sums.push_back(&instruction);
      }
    }
  }
  ASSERT_EQ(sums.size(), 2);
  EXPECT_THAT(sums[0]->operands, ElementsAre(state(0), state(1)));
  EXPECT_THAT(sums[0]->results, ElementsAre(state(0)));
  EXPECT_THAT(sums[1]->operands, ElementsAre(state(0), state(2)));
  EXPECT_THAT(sums[1]->results, ElementsAre(state(0)));
}

// One microbatch has the sum where it always was, and no accumulator.
TEST(GradientsByUse, OneMicrobatchAddsThemUpInBackward) {
  const Program program = compile_training(tied(), {.update = {.num_microbatches = 1}});
  EXPECT_EQ(std::ranges::count(program.states,
                               StateRole::kGradient,
                               [](const StateBinding& state) { return state.state.role; }),
            0);
  for (const Segment& segment : program.segments) {
    EXPECT_EQ(std::ranges::count_if(segment.instructions,
                                    [](const Instruction& instruction) {
                                      return instruction.op->get_if<AddAttrs>() != nullptr;
                                    }),
              segment.code.action == Action::kBackward  ? 2
              : segment.code.action == Action::kForward ? 1
                                                        : 0)
        << segment.name;
  }
}

}  // namespace
}  // namespace tessera
