#include "tessera/passes/memory/recompute_choices.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/autodiff/differentiate.h"
#include "tessera/ops/op.h"
#include "tessera/passes/graph/add_dropout.h"
#include "tessera/passes/graph/graph_edit.h"
#include "tessera/passes/graph/group_gemms.h"
#include "tessera/passes/graph/unfuse_attention.h"
#include "tessera/passes/memory/recompute_layers.h"
#include "tessera/passes/test_graphs.h"

namespace tessera {
namespace {

double node_cost(const Graph& graph, const Node& node) {
  const Cost cost = tessera::cost(*node.op, graph.types(node.operands));
  return cost.flop + cost.bytes_read + cost.bytes_written;
}

// What backward of a layer takes in all, and the bytes of its forward's nodes that it reads.
struct Measured {
  double backward = 0.0;
  std::int64_t bytes = 0;
};

Measured measure(const Graph& graph, std::int32_t layer) {
  Measured found;
  std::set<NodeId> read;
  for (const Node& node : graph.nodes) {
    if (node.layer != layer || !is_of_backward(node) || is_view(node)) {
      continue;
    }
    found.backward += node_cost(graph, node);
    for (ValueId operand : node.operands) {
      NodeId producer = graph[operand].producer;
      while (producer.valid() && is_view(graph.nodes[producer.at()])) {
        operand = graph.nodes[producer.at()].operands.front();
        producer = graph[operand].producer;
      }
      if (producer.valid() && graph.nodes[producer.at()].layer == layer &&
          graph.nodes[producer.at()].phase == Phase::kForward) {
        read.insert(producer);
      }
    }
  }
  for (const NodeId id : read) {
    for (const ValueId result : graph.nodes[id.at()].results) {
      found.bytes += graph[result].type.num_bytes();
    }
  }
  return found;
}

Graph kept(const Graph& graph, std::int32_t layer, const std::vector<std::string>& keep) {
  RecomputeRule rule = {.first = layer, .end = layer + 1};
  rule.keep = keep;
  return recompute_layers(graph, RecomputeRules{rule});
}

std::vector<Graph> models() {
  return {differentiate(small_llama()),
          group_gemms(differentiate(small_llama())),
          differentiate(small_gpt2()),
          differentiate(unfuse_attention(small_llama(), AttentionKernels::kUnfused))};
}

// Bytes and work of each choice are those of the graph that its rule makes.
TEST(RecomputeChoices, SayWhatRulesMakeOfLayers) {
  for (const Graph& graph : models()) {
    const std::vector<LayerChoices> layers = recompute_choices(graph, node_cost);
    ASSERT_EQ(layers.size(), 2U);
    for (const LayerChoices& layer : layers) {
      const Measured all = measure(graph, layer.layer);
      for (const KeptChoice& choice : layer.front) {
        const Measured found = measure(kept(graph, layer.layer, choice.keep), layer.layer);
        EXPECT_NEAR(found.backward - all.backward, choice.seconds, 1e-6 * all.backward);
        EXPECT_EQ(found.bytes, choice.bytes);
      }
      EXPECT_EQ(layer.front.back().seconds, 0.0);
      EXPECT_LE(layer.front.back().bytes, all.bytes);
    }
  }
}

// Of what leaves in the graph that the rule makes; of what stores nothing there are all that there
// are without stores.
TEST(RecomputeChoices, SayWhatRulesStore) {
  constexpr double kPrice = 1e-3;
  for (const Graph& graph : models()) {
    const std::vector<KeptChoice> plain = recompute_choices(graph, node_cost)[0].front;
    const LayerChoices layer =
        recompute_choices(graph, node_cost, {.store_seconds = kPrice}).front();
    std::vector<std::int64_t> unstored;
    for (const KeptChoice& choice : layer.front) {
      RecomputeRule rule = {.first = 0, .end = 1};
      rule.keep = choice.keep;
      rule.store = choice.store;
      const Graph made = recompute_layers(graph, RecomputeRules{rule});
      std::int64_t leaves = 0;
      for (const ValueInfo& value : made.values) {
        leaves += value.leaves ? value.type.num_bytes() : 0;
      }
      EXPECT_EQ(choice.stored_bytes, leaves);
      EXPECT_DOUBLE_EQ(choice.seconds,
                       choice.repeated + kPrice * static_cast<double>(choice.stored_bytes));
      EXPECT_GE(layer.kept_bytes(0), 0);
      if (choice.store.empty()) {
        unstored.push_back(choice.bytes);
      }
    }
    EXPECT_GT(layer.left_bytes, 0);
    EXPECT_EQ(layer.front.front().bytes, std::min<std::int64_t>(layer.front[0].bytes, 0));
    for (const KeptChoice& choice : plain) {
      EXPECT_THAT(unstored, testing::Contains(choice.bytes));
    }
  }
}

// Where rules say what is computed again, what is kept may be stored and nothing else.
TEST(RecomputeChoices, StoreWhatRulesKeep) {
  const Graph graph = recompute_layers(differentiate(small_llama()), recompute_all());
  const LayerChoices layer =
      recompute_choices(graph, node_cost, {.may_repeat = false, .store_seconds = 1.0}).front();
  ASSERT_EQ(layer.front.size(), 2U);
  EXPECT_EQ(layer.front[0].stored_bytes, layer.left_bytes);
  EXPECT_EQ(layer.front[1].stored_bytes, 0);
  EXPECT_EQ(layer.front[0].repeated, 0.0);
}

// What is random is drawn once, however little is kept.
TEST(RecomputeChoices, KeepWhatIsRandom) {
  const Graph graph =
      differentiate(add_dropout(unfuse_attention(small_llama(), AttentionKernels::kUnfused), 0.5));
  const auto random_in_backward = [](const Graph& of) {
    return std::ranges::count_if(
        of.nodes, [](const Node& node) { return is_random(node) && is_of_backward(node); });
  };
  const std::int64_t before = random_in_backward(graph);
  EXPECT_GT(random_in_backward(recompute_layers(graph, recompute_all())), before);
  const std::vector<LayerChoices> layers = recompute_choices(graph, node_cost);
  EXPECT_EQ(random_in_backward(kept(graph, 0, layers[0].front[0].keep)), before);
  EXPECT_EQ(random_in_backward(recompute_layers(graph, recompute_all(RecomputeKept::kAllButCheap))),
            before);
}

// The front has bytes and time in order, and no set of ops is better than all that is in it, where
// not more of them are chosen from than all sets are looked at.
TEST(RecomputeChoices, AreNotDominated) {
  constexpr std::uint64_t kSeed = 7;
  std::mt19937_64 random(kSeed);
  std::vector<Graph> graphs = models();
  graphs.pop_back();
  for (const Graph& graph : graphs) {
    const std::vector<KeptChoice> front = recompute_choices(graph, node_cost).front().front;
    for (std::size_t i = 1; i < front.size(); ++i) {
      EXPECT_GT(front[i].bytes, front[i - 1].bytes);
      EXPECT_LT(front[i].seconds, front[i - 1].seconds);
    }
    const Measured all = measure(graph, 0);
    const std::vector<std::string> names = recompute_names(graph);
    for (int tried = 0; tried < 100; ++tried) {
      std::vector<std::string> keep;
      for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
        if (!names[i].empty() && graph.nodes[i].layer == 0 && !is_view(graph.nodes[i]) &&
            random() % 2 == 0) {
          keep.push_back(names[i]);
        }
      }
      const Measured found = measure(kept(graph, 0, keep), 0);
      const double seconds = found.backward - all.backward;
      EXPECT_TRUE(std::ranges::any_of(front, [&](const KeptChoice& choice) {
        return choice.bytes <= found.bytes && choice.seconds <= seconds + 1e-6 * all.backward;
      })) << ::testing::PrintToString(keep);
    }
  }
}

}  // namespace
}  // namespace tessera
