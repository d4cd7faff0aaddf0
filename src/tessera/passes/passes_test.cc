#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/autodiff/differentiate.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/models/llama/llama.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/compile.h"
#include "tessera/passes/graph/add_adapters.h"
#include "tessera/passes/graph/cache_attention.h"
#include "tessera/passes/graph/choose_attention.h"
#include "tessera/passes/graph/chunk_loss.h"
#include "tessera/passes/graph/fuse.h"
#include "tessera/passes/graph/group_gemms.h"
#include "tessera/passes/graph/join_accumulation.h"
#include "tessera/passes/graph/round_gradients.h"
#include "tessera/passes/graph/undecayed_weights.h"
#include "tessera/passes/graph/unfuse_attention.h"
#include "tessera/passes/memory/plan_memory.h"
#include "tessera/passes/memory/recompute_layers.h"
#include "tessera/passes/program/assign_slots.h"
#include "tessera/passes/program/lower.h"
#include "tessera/passes/ranks/append_update.h"
#include "tessera/passes/test_graphs.h"
#include "tessera/plan/graphs.h"
#include "tessera/runtime/training_step.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// Two layers' worth of products: one weight with the outputs first, one with the inputs first.
Graph two_products() {
  return parse_graph(R"(graph "two" {
    %0: f32[batch=2, embed=6] = input "x"
    %1: f32[mlp=8, embed=6] = parameter "layers.0.up.weight" normal(0, 0.02, 0)
    %2: f32[mlp=8, embed=6] = parameter "layers.0.down" normal(0, 0.02, 0)
    %3: f32[vocab=5, embed=6] = parameter "head.weight" normal(0, 0.02, 0)
    %4: f32[batch=2, mlp=8] = matmul {transpose_b=true}(%0, %1) @forward layer 0
    %5: f32[batch=2, embed=6] = matmul(%4, %2) @forward layer 0
    %6: f32[batch=2, vocab=5] = matmul {transpose_b=true}(%5, %3) @forward
    output "y" = %6
  })");
}

TEST(AddAdapters, AddsALowRankProductToEachTargetAndFreezesTheRest) {
  const Graph adapted =
      add_adapters(two_products(), {.rank = 3, .alpha = 6.0, .targets = {"up", "down"}});
  const Graph expected = parse_graph(R"(graph "two" {
    %0: f32[batch=2, embed=6] = input "x"
    %1: f32[mlp=8, embed=6] = parameter "layers.0.up.weight" normal(0, 0.02, 0) frozen
    %2: f32[mlp=8, embed=6] = parameter "layers.0.down" normal(0, 0.02, 0) frozen
    %3: f32[vocab=5, embed=6] = parameter "head.weight" normal(0, 0.02, 0) frozen
    %4: f32[lora_rank=3, embed=6] = parameter "layers.0.up.weight.lora_a" normal(0, 0.23570226039551587, 0)
    %5: f32[mlp=8, lora_rank=3] = parameter "layers.0.up.weight.lora_b" normal(0, 0, 0)
    %6: f32[lora_rank=3, mlp=8] = parameter "layers.0.down.lora_a" normal(0, 0.20412414523193154, 0)
    %7: f32[embed=6, lora_rank=3] = parameter "layers.0.down.lora_b" normal(0, 0, 0)
    %8: f32[batch=2, mlp=8] = matmul {transpose_b=true}(%0, %1) @forward layer 0
    %9: f32[batch=2, lora_rank=3] = matmul {transpose_b=true}(%0, %4) @forward layer 0
    %10: f32[batch=2, lora_rank=3] = multiply {factor=2}(%9) @forward layer 0
    %11: f32[batch=2, mlp=8] = matmul {transpose_b=true}(%10, %5) @forward layer 0
    %12: f32[batch=2, mlp=8] = add(%8, %11) @forward layer 0
    %13: f32[batch=2, embed=6] = matmul(%12, %2) @forward layer 0
    %14: f32[batch=2, lora_rank=3] = matmul {transpose_b=true}(%12, %6) @forward layer 0
    %15: f32[batch=2, lora_rank=3] = multiply {factor=2}(%14) @forward layer 0
    %16: f32[batch=2, embed=6] = matmul {transpose_b=true}(%15, %7) @forward layer 0
    %17: f32[batch=2, embed=6] = add(%13, %16) @forward layer 0
    %18: f32[batch=2, vocab=5] = matmul {transpose_b=true}(%17, %3) @forward
    output "y" = %18
  })");
  EXPECT_EQ(to_string(adapted), to_string(expected));
}

TEST(AddAdapters, KnowsTheWeightsOfLayers) {
  const std::vector<AdaptableWeight> weights = adaptable_weights(two_products());
  ASSERT_EQ(weights.size(), 2U);  // not the head
  EXPECT_EQ(weights[0].name, "layers.0.up.weight");
  EXPECT_EQ(weights[0].inputs, 6);
  EXPECT_EQ(weights[0].outputs, 8);
  EXPECT_TRUE(weights[0].outputs_first);
  EXPECT_EQ(weights[1].inputs, 8);
  EXPECT_EQ(weights[1].outputs, 6);
  EXPECT_FALSE(weights[1].outputs_first);
  EXPECT_EQ(adaptable_weights(small_llama()).size(), 2U * 7U);
  const std::string message = error_of(ErrorCode::kInvalidArgument, [] {
    add_adapters(two_products(), {.rank = 1, .targets = {"head"}});
  });
  EXPECT_THAT(message, HasSubstr("graph two has no weight head that an adapter could be added to"));
}

// The products of adapters run as one in a model, too, and the gradients of those whose input has
// one: the first layer's norm, before which all is frozen, makes none.
TEST(AddAdapters, LeavesTheGroupsOfProducts) {
  const AdapterOptions options = {
      .rank = 2, .alpha = 2.0, .targets = {"wq", "wk", "wv", "wo", "w1", "w3", "w2"}};
  const Graph before = differentiate(add_adapters(small_llama(), options));
  // Forward: q, k, v and gate, up of frozen weights and of A; backward: the frozen ones again.
  const int forward = 2 * (2 + 1 + 2 + 1);
  const int inputs = 2 + 1 + 1;
  const int weights = 2 + 1 + 1;
  EXPECT_EQ(count(before, "matmul") - count(group_gemms(before), "matmul"),
            forward + inputs + weights);
}

TEST(CacheAttention, KeysAndValuesGoThroughStates) {
  const LlamaConfig config{
      .dim = 8, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 12, .vocab = 40};
  const Graph before = generation_graph(describe_llama(config), 3, DType::kF32, 2);
  const Graph after = cache_attention(before, 10);
  verify(after);
  std::vector<std::string> caches;
  for (const ValueId cache : after.sources(ValueKind::kCache)) {
    EXPECT_EQ(to_string(after[cache].type), "f32[batch=2, keys=10, kv_heads=2, head_dim=2]");
    caches.push_back(after[cache].name);
  }
  EXPECT_THAT(caches, ::testing::ElementsAre("keys.0", "values.0", "keys.1", "values.1"));
  for (const Node& node : after.nodes) {
    if (info(*node.op).name == "attention") {
      EXPECT_EQ(after[node.operands[4]].name, "key_positions");
      EXPECT_EQ(after[node.operands[6]].name, "key_documents");
      EXPECT_EQ(after[node.operands[3]].name, "positions");
    }
  }
}

// By the layers of the attention that backward has.
TEST(ChooseAttention, TellsBackwardThroughForward) {
  const Graph chosen = choose_attention(small_llama(), {.whole_rows = true, .any_order = true});
  std::map<std::int32_t, bool> told;
  for (const Node& node : differentiate(chosen).nodes) {
    if (const auto* attrs = node.op->get_if<AttentionBackwardAttrs>(); attrs != nullptr) {
      told[node.layer] = attrs->whole_rows && attrs->any_order;
    }
  }
  EXPECT_EQ(told, (std::map<std::int32_t, bool>{{0, true}, {1, true}}));
}

TEST(ChunkLoss, TellsForwardAndBackward) {
  const auto chunks = [](const Graph& graph) {
    std::vector<std::int64_t> found;
    for (const Node& node : graph.nodes) {
      if (const auto* attrs = node.op->get_if<CrossEntropyAttrs>(); attrs != nullptr) {
        found.push_back(attrs->chunk);
      }
    }
    return found;
  };
  const Graph before = small_llama();
  EXPECT_EQ(chunks(before), std::vector<std::int64_t>{CrossEntropyAttrs().chunk});
  std::int64_t row_bytes = 0;
  for (const Node& node : before.nodes) {
    if (node.op->get_if<CrossEntropyAttrs>() != nullptr) {
      row_bytes = before[node.operands[1]].type.dims[0].bound * 4;
    }
  }
  const Graph cut = differentiate(chunk_loss(before, 700 * row_bytes));
  EXPECT_EQ(chunks(cut), (std::vector<std::int64_t>{512, 512}));
  EXPECT_EQ(chunks(chunk_loss(before, 700)), std::vector<std::int64_t>{256});
}

// Those of products alone: of norms, embeddings and heads f32 comes out of sums within the op.
TEST(RoundGradients, OfProductsOfBf16) {
  const auto dtypes = [](const Graph& graph) {
    std::map<std::string, DType> found;
    for (const Output& output : graph.outputs) {
      found[output.name] = graph[output.value].type.dtype;
    }
    return found;
  };
  Graph before = differentiate(small_llama(2, DType::kBF16));
  const auto after = dtypes(round_gradients(before));
  for (const auto& [name, dtype] : dtypes(before)) {
    EXPECT_EQ(dtype, DType::kF32) << name;
    const bool is_of_product =
        name.starts_with("gradient.layers.") && name.find("norm") == std::string::npos;
    EXPECT_EQ(after.at(name), is_of_product ? DType::kBF16 : DType::kF32) << name;
  }
  EXPECT_NO_THROW(verify(round_gradients(std::move(before))));
  const Graph f32 = differentiate(small_llama());
  EXPECT_EQ(to_string(round_gradients(f32)), to_string(f32));
}

TEST(CacheAttention, RefusesAttentionThatSeesWhatComesLater) {
  Graph graph = small_llama();
  for (Node& node : graph.nodes) {
    if (const auto* attrs = node.op->get_if<AttentionAttrs>(); attrs != nullptr) {
      AttentionAttrs open = *attrs;
      open.causal = false;
      node.op = make_op(open);
    }
  }
  const std::string message =
      error_of(ErrorCode::kInvalidArgument, [&] { cache_attention(graph, 10); });
  EXPECT_THAT(message, HasSubstr("expected causal attention of a forward graph"));
}

// A layer has 7 products; qkv and gate/up leave 4, forward and in both gradients.
TEST(GroupGemms, QkvAndGateUpBecomeOne) {
  EXPECT_EQ(count(group_gemms(differentiate(small_llama())), "matmul"), 2 * 4 * 3);
}

// A GPT-2's embedding of tokens is its head.
TEST(UndecayedWeights, AreNormsBiasesAndTables) {
  const Graph graph = small_gpt2();
  std::set<std::string> expected = {"pos_embeddings.weight"};
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    const std::string& name = graph[parameter].name;
    if (name.ends_with(".bias") || name.find("norm") != std::string::npos) {
      expected.insert(name);
    }
  }
  EXPECT_EQ(undecayed_weights(graph), expected);
  EXPECT_EQ(expected.size(), 1U + 2U + 2U * (4U + 6U));
  EXPECT_TRUE(undecayed_weights(small_llama()).contains("tok_embeddings.weight"));
  EXPECT_FALSE(undecayed_weights(small_llama()).contains("output.weight"));
  EXPECT_THAT(undecayed_weights(
                  add_adapters(small_llama(), {.rank = 2, .alpha = 2.0, .targets = {"wq", "w2"}})),
              testing::IsEmpty());
}

// Norms take all additions of a Llama in; what reads a GPT-2's sums, all biases except those of q,
// k and v.
TEST(Fuse, LeavesNoAdditions) {
  const auto fused = [](const Graph& graph) {
    Graph result = fuse(append_update(group_gemms(differentiate(graph)), {}));
    verify(result);
    return result;
  };
  EXPECT_EQ(count(fused(small_llama()), "add"), 0);
  EXPECT_EQ(count(fused(small_gpt2()), "add_bias"), 2 * 3);
}

// The states of parameters that lie side by side become one accumulator, and the head's gradient
// goes on over microbatches in the op that adds it up over chunks.
TEST(JoinAccumulation, AddsInTheProducer) {
  const Graph graph =
      append_update(group_gemms(differentiate(small_llama())), {.num_microbatches = 3});
  const auto counts = count_ops(join_accumulation(fuse(graph)));
  EXPECT_EQ(counts.at("matmul {transpose_a=true, contract=2, accumulate=true}"), 2 * 4);
  EXPECT_EQ(counts.at("cross_entropy {gradients=true, accumulate=true}"), 1);
}

// By op, how many nodes of backward are copies of forward ones.
std::map<std::string, int> repeated_ops(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Node& node : graph.nodes) {
    if (node.phase == Phase::kBackward && node.layer >= 0) {
      ++counts[std::string(info(*node.op).name)];
    }
  }
  return counts;
}

TEST(RecomputeLayers, RepeatsWhatIsNotKept) {
  const Graph graph = differentiate(small_llama());
  const std::map<std::string, int> none = repeated_ops(graph);
  const auto more = [&](RecomputeKept kept, const std::string& op) {
    std::map<std::string, int> counts = repeated_ops(recompute_layers(graph, recompute_all(kept)));
    return counts[op] - (none.contains(op) ? none.at(op) : 0);
  };
  const int layers = more(RecomputeKept::kInputs, "attention");
  EXPECT_GT(layers, 0);
  EXPECT_EQ(more(RecomputeKept::kAllButAttention, "attention"), layers);
  EXPECT_EQ(more(RecomputeKept::kAllButAttention, "matmul"), 0);
  EXPECT_EQ(more(RecomputeKept::kEverySecondProduct, "attention"), 0);
  // Of wq, wk, wv, wo, w1, w3 and w2, whose result backward does not read.
  EXPECT_EQ(more(RecomputeKept::kInputs, "matmul"), 6 * layers);
  EXPECT_EQ(more(RecomputeKept::kEverySecondProduct, "matmul"), 3 * layers);
  EXPECT_EQ(repeated_ops(recompute_layers(graph, {})), none);
  const Graph first = recompute_layers(graph, {{.end = 1}});
  EXPECT_EQ(repeated_ops(first)["attention"], 1);
}

// Attention of several ops is repeated whole, or kept whole.
TEST(RecomputeLayers, TakesUnfusedAttentionForAttention) {
  const Graph graph = differentiate(unfuse_attention(small_llama(), AttentionKernels::kUnfused));
  const std::map<std::string, int> none = repeated_ops(graph);
  const int layers = none.at("mask_scores");  // each masks its gradient
  const auto more = [&](RecomputeKept kept, const std::string& op) {
    return repeated_ops(recompute_layers(graph, recompute_all(kept)))[op] -
           (none.contains(op) ? none.at(op) : 0);
  };
  for (const std::string op : {"multiply", "mask_scores", "scale_mask_softmax"}) {
    EXPECT_EQ(more(RecomputeKept::kAllButAttention, op), layers) << op;
    EXPECT_EQ(more(RecomputeKept::kEverySecondProduct, op), 0) << op;
  }
  EXPECT_EQ(more(RecomputeKept::kAllButAttention, "batched_product"), 2 * layers);
  EXPECT_EQ(more(RecomputeKept::kAllButAttention, "matmul"), 0);
  EXPECT_EQ(more(RecomputeKept::kEverySecondProduct, "batched_product"), 0);
}

TEST(RecomputeLayers, KeepsOnlyTheInputsOfLayers) {
  const Graph graph = recompute_layers(differentiate(small_llama()), recompute_all());
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
}

Program compile(const Graph& graph, bool recompute, std::int64_t num_microbatches) {
  return compile_training(graph,
                          {.update = {.num_microbatches = num_microbatches},
                           .recompute = recompute ? recompute_all() : RecomputeRules()});
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

// swiglu_backward may write its results over gate and up, but here both are one value.
TEST(Lower, AnOperandReadTwiceIsOverwrittenOnlyWhereTheOpAllowsBoth) {
  for (const std::string_view last :
       {"%6: f32[n=4] = add(%4, %5)", "%6: f32[n+n=8] = concat {name=\"n+n\"}(%4, %5)"}) {
    const Graph graph = parse_graph(format(R"(graph "twice" {{
  %0: f32[n=4] = input "dy"
  %1: f32[n=4] = input "x"
  %2: f32[n=4] = gelu(%1) @forward
  %3: f32[n=4] = gelu(%0) @forward
  %4: f32[n=4], %5: f32[n=4] = swiglu_backward(%3, %2, %2) @forward
  {} @forward
  output "y" = %6
}}
)",
                                           last));
    const Program program = plan_memory(assign_slots(lower(graph, {})));
    EXPECT_NO_THROW(verify(program)) << to_string(program);
  }
}

TEST(Lower, TensorsOfMoreThan64BitsDoNotFit) {
  const auto message = [](const LlamaConfig& config, std::int64_t batch, std::int64_t seq) {
    try {
      compile_training(training_graph(describe_llama(config), batch, seq, DType::kF32), {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const LlamaConfig small{.dim = 8, .layers = 1, .heads = 2, .kv_heads = 1, .ffn = 8, .vocab = 40};
  EXPECT_THAT(
      message(small, 2147483647, 2147483647),
      HasSubstr("a tensor of i32[batch=2147483647, seq=2147483647] has more than 2^63 bytes "
                "(input tokens)"));
  LlamaConfig wide = small;
  wide.dim = 2147483646;
  wide.heads = 1;
  EXPECT_THAT(message(wide, 1, 16),
              HasSubstr("a tensor of f32[heads=1, head_dim=2147483646, embed=2147483646] has more "
                        "than 2^63 bytes (parameter layers.0.attention.wq.weight)"));
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
  const Graph graph = join_accumulation(
      fuse(append_update(group_gemms(differentiate(small_llama())), {.num_microbatches = 2})));
  const Graph first = start_accumulators(graph);
  EXPECT_EQ(first.values.size(), graph.values.size());
  for (const Node& node : first.nodes) {
    EXPECT_THAT(to_string(*node.op), testing::Not(HasSubstr("accumulate=true")));
  }
}

}  // namespace
}  // namespace tessera
