#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/autodiff/differentiate.h"
#include "tessera/base/error.h"
#include "tessera/models/llama/llama.h"
#include "tessera/passes/lower.h"
#include "tessera/passes/pass.h"
#include "tessera/passes/pipeline.h"
#include "tessera/train/step_program.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

Graph small_llama(std::int64_t layers = 2) {
  const LlamaConfig config{
      .dim = 8, .layers = layers, .heads = 4, .kv_heads = 2, .ffn = 12, .vocab = 40};
  return training_graph(describe_llama(config), 2, 6, DType::kF32);
}

std::map<std::string, int> count_ops(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Node& node : graph.nodes) {
    ++counts[to_string(*node.op)];
  }
  return counts;
}

int count(const Graph& graph, std::string_view op) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& n) {
    return info(*n.op).name == op;
  }));
}

constexpr std::string_view kLinearLoss = R"(graph "linear" {
  %0: f32[rows=2, embed=3] = input "x"
  %1: i32[rows=2] = input "labels"
  %2: f32[] = scalar "seed"
  %3: f32[embed2=3, embed=3] = parameter "w" normal(0, 0.02, 0)
  %4: f32[vocab=5, embed2=3] = parameter "head" normal(0, 0.02, 0)
  %5: f32[rows=2, embed2=3] = matmul {transpose_b=true}(%0, %3) @forward
  %6: f32[] = cross_entropy(%5, %4, %1, %2) @forward
  output "loss" = %6
}
)";

TEST(Differentiate, AppendsBackwardWithWeightGradientsApart) {
  EXPECT_EQ(to_string(differentiate(parse_graph(kLinearLoss), "loss")), R"(graph "linear" {
  %0: f32[rows=2, embed=3] = input "x"
  %1: i32[rows=2] = input "labels"
  %2: f32[] = scalar "seed"
  %3: f32[embed2=3, embed=3] = parameter "w" normal(0, 0.02, 0)
  %4: f32[vocab=5, embed2=3] = parameter "head" normal(0, 0.02, 0)
  %5: f32[rows=2, embed2=3] = matmul {transpose_b=true}(%0, %3) @forward
  %6: f32[] = cross_entropy(%5, %4, %1, %2) @forward
  %7: f32[rows=2, embed2=3], %8: f32[vocab=5, embed2=3] = cross_entropy {loss=false, gradients=true}(%5, %4, %1, %2) @backward
  %9: f32[embed2=3, embed=3] = matmul {transpose_a=true}(%7, %0) @weight_gradient
  output "loss" = %6
  output "gradient.w" = %9
  output "gradient.head" = %8
}
)");
}

TEST(Differentiate, Errors) {
  const auto message = [](const Graph& graph, std::string_view loss) {
    try {
      differentiate(graph, loss);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  Graph graph = parse_graph(kLinearLoss);
  EXPECT_THAT(message(graph, "lose"), HasSubstr("has no output \"lose\""));
  graph.add_source(ValueKind::kParameter, "unused", {.dtype = DType::kF32, .dims = {}});
  EXPECT_THAT(message(graph, "loss"), HasSubstr("parameter unused does not reach the loss"));
}

// A gradient that an op leaves out must not vanish: the parameter would silently stay as it is.
TEST(Differentiate, RefusesAnOperandWithoutGradient) {
  const Graph graph = parse_graph(R"(graph "scaled" {
  %0: f32[rows=2, embed=3] = input "x"
  %1: i32[rows=2] = input "labels"
  %2: f32[] = scalar "seed"
  %3: f32[] = parameter "factor" normal(1, 0, 0)
  %4: f32[vocab=5, embed=3] = parameter "head" normal(0, 0.02, 0)
  %5: f32[rows=2, embed=3] = scale(%0, %3) @forward
  %6: f32[] = cross_entropy(%5, %4, %1, %2) @forward
  output "loss" = %6
}
)");
  try {
    differentiate(graph, "loss");
    FAIL() << "differentiated a factor of scale";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("node 0: scale has no gradient for its operand 1"));
  }
}

TEST(GroupGemms, QkvAndGateUpBecomeOne) {
  const Graph before = differentiate(small_llama(), "loss");
  const Graph after = group_gemms(before);
  // A layer has 7 products; qkv and gate/up leave 4, forward and in both gradients.
  EXPECT_EQ(count(before, "matmul"), 2 * 7 * 3);
  EXPECT_EQ(count(after, "matmul"), 2 * 4 * 3);
  // Forward: the weights; backward: the joint gradient and again the weights.
  EXPECT_EQ(count(after, "concat"), 2 * 2 * 3);
  // The sums of the parts' input gradients are gone: q + k + v and gate + up.
  EXPECT_EQ(count(before, "add") - count(after, "add"), 2 * 3);
}

TEST(Fuse, JoinsWhatItNames) {
  const Graph graph = append_update(group_gemms(differentiate(small_llama(), "loss")), {});
  const Graph fused = fuse(graph);
  const auto counts = count_ops(fused);
  // Two norms a layer and the last one; the first has no addition before it.
  EXPECT_EQ(counts.at("rms_norm {residual=true}"), 4);
  EXPECT_EQ(counts.at("rms_norm"), 1);
  EXPECT_EQ(counts.at("rms_norm_backward {residual=true, weight_gradient=true}"), 4);
  EXPECT_EQ(counts.at("rms_norm_backward {weight_gradient=true}"), 1);
  EXPECT_EQ(counts.at("cross_entropy {gradients=true}"), 1);
  EXPECT_EQ(count(fused, "add"), 0);
}

TEST(Fuse, AccumulatesInTheProducer) {
  const Graph graph =
      append_update(group_gemms(differentiate(small_llama(), "loss")), {.num_microbatches = 3});
  const Graph fused = fuse(graph);
  const auto counts = count_ops(fused);
  EXPECT_EQ(counts.at("matmul {transpose_a=true, contract=2, accumulate=true}"), 2 * 4);
  EXPECT_EQ(counts.at("cross_entropy {gradients=true, accumulate=true}"), 1);
  EXPECT_EQ(counts.at("embedding_backward {vocab=40, accumulate=true}"), 1);
  // What stays: the loss and the gains' gradients.
  EXPECT_EQ(count(fused, "add"), 1 + 5);
}

TEST(RecomputeLayers, KeepsOnlyTheInputsOfLayers) {
  const Graph plain = differentiate(small_llama(), "loss");
  const Graph graph = recompute_layers(plain);
  for (const Node& node : graph.nodes) {
    if (node.phase == Phase::kForward || node.layer < 0) {
      continue;
    }
    for (const ValueId operand : node.operands) {
      const NodeId producer = graph[operand].producer;
      if (producer.valid()) {
        const Node& made_by = graph.nodes[producer.at()];
        EXPECT_FALSE(made_by.phase == Phase::kForward && made_by.layer == node.layer)
            << to_string(*node.op) << " reads what its layer's forward made";
      }
    }
  }
  EXPECT_EQ(count(graph, "attention"), 2 * count(plain, "attention"));
}

Program compile(const Graph& graph, bool recompute, std::int64_t num_microbatches) {
  return compile_training(
      graph, {.update = {.num_microbatches = num_microbatches}, .recompute = recompute});
}

std::int64_t peak(const Program& program, Category category) {
  for (const MemoryRow& row : memory_by_category(program)) {
    if (row.category == category) {
      return row.peak_bytes;
    }
  }
  return -1;
}

TEST(Lower, StepsPrintParseAndVerify) {
  for (const std::int64_t num_microbatches : {1, 3}) {
    for (const bool recompute : {false, true}) {
      const Program program = compile(small_llama(), recompute, num_microbatches);
      EXPECT_TRUE(equal(program, parse_program(to_string(program))));
      EXPECT_EQ(program.calls.size(), static_cast<std::size_t>(2 * num_microbatches + 1));
    }
  }
}

TEST(Lower, FirstMicrobatchWritesAccumulators) {
  const Program program = compile(small_llama(), false, 2);
  EXPECT_EQ(program[program.calls[1].segment].name, "backward_first");
  EXPECT_EQ(program[program.calls[3].segment].name, "backward");
  // Calling the adding variant first reads accumulators that nobody wrote.
  Program wrong = program;
  wrong.calls[1].segment = program.calls[3].segment;
  EXPECT_THROW(verify(wrong), Error);
}

TEST(Lower, RecomputeNeedsLessMemory) {
  const Graph graph = small_llama(8);
  EXPECT_LT(peak(compile(graph, true, 1), Category::kActivation),
            peak(compile(graph, false, 1), Category::kActivation) / 2);
}

TEST(Lower, ParametersOfAGroupLieSideBySide) {
  const Program program = compile(small_llama(), false, 1);
  const TensorRef& q = find_binding(program.states, "layers.0.attention.wq.weight").tensor;
  const TensorRef& k = find_binding(program.states, "layers.0.attention.wk.weight").tensor;
  EXPECT_EQ(q.buffer, k.buffer);
  EXPECT_EQ(k.offset, q.offset + q.type.num_bytes());
}

// The plan has room for one chunk of logits, and no tensor of all of them anywhere.
TEST(Lower, FullLogitsNeverExist) {
  const LlamaConfig config{
      .dim = 8, .layers = 1, .heads = 2, .kv_heads = 1, .ffn = 8, .vocab = 5000};
  const std::int64_t rows = 2048;
  const Graph graph = training_graph(describe_llama(config), 4, 512, DType::kF32);
  const Program program = compile(graph, false, 1);
  for (const Buffer& buffer : program.buffers) {
    EXPECT_LT(buffer.bytes, rows * config.vocab * 4 / 2) << buffer.name;
  }
  EXPECT_LT(program.arena_bytes, rows * config.vocab * 4);
}

TEST(StartAccumulators, DropsTheAccumulator) {
  const Graph graph = fuse(
      append_update(group_gemms(differentiate(small_llama(), "loss")), {.num_microbatches = 2}));
  const Graph first = start_accumulators(graph);
  EXPECT_EQ(first.values.size(), graph.values.size());
  for (const Node& node : first.nodes) {
    EXPECT_THAT(to_string(*node.op), ::testing::Not(HasSubstr("accumulate=true")));
  }
}

}  // namespace
}  // namespace tessera
