#include "tessera/passes/memory/recompute_layers.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tessera/ops/op.h"
#include "tessera/ops/work.h"
#include "tessera/passes/graph/graph_edit.h"
#include "tessera/passes/graph/unfuse_attention.h"

namespace tessera {
namespace {

bool is_backward(const Node& node) {
  return node.phase == Phase::kBackward || node.phase == Phase::kWeightGradient;
}

// A layer, and the slice of the tokens.
using SlicedLayer = std::pair<std::int32_t, std::int32_t>;

SlicedLayer sliced_layer_of(const Node& node) {
  return {node.layer, node.chunk};
}

// By value, whether it is kept for what another chunk does: read there, or in one memory with what
// was made there.
std::vector<bool> find_kept(const Graph& graph) {
  std::vector<bool> kept(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (const ValueId operand : node.operands) {
      const NodeId producer = graph[operand].producer;
      if (producer.valid() && graph.nodes[producer.at()].chunk != node.chunk) {
        kept[operand.at()] = true;
        for (const ValueId result : node.results) {
          kept[result.at()] = kept[result.at()] || is_view(node);
        }
      }
    }
  }
  return kept;
}

bool has_product(const Graph& graph, const Node& node) {
  const Works works = work(*node.op, graph.types(node.operands));
  return std::ranges::find(works, WorkKind::kProduct, &Work::kind) != works.end();
}

// Also of attention that is several ops.
bool is_attention(const Graph& graph, const Node& node) {
  const Works works = work(*node.op, graph.types(node.operands));
  return is_of_unfused_attention(graph, node) ||
         std::ranges::find(works, WorkKind::kAttention, &Work::kind) != works.end();
}

bool is_sum_over_ranks(const Graph& graph, const Node& node) {
  const Collectives uses = collectives(*node.op, graph.types(node.operands));
  return std::ranges::any_of(uses, [](const CollectiveUse& use) {
    return use.kind == CollectiveKind::kReduceScatter || use.kind == CollectiveKind::kAllReduce;
  });
}

// Adds what is kept though its own layer's backward alone reads it.
void add_kept(const Graph& graph, RecomputeKept how, std::vector<bool>& kept) {
  std::map<SlicedLayer, int> products;
  for (const Node& node : graph.nodes) {
    if (node.layer < 0 || node.phase != Phase::kForward) {
      continue;
    }
    bool keeps = false;
    switch (how) {
      case RecomputeKept::kInputs:
      case RecomputeKept::kLastStage:
        break;
      case RecomputeKept::kAllButAttention:
        // What attention alone gathers backward gathers again.
        keeps = !is_attention(graph, node) && node.op->get_if<AllGatherAttrs>() == nullptr;
        break;
      case RecomputeKept::kEverySecondProduct:
        keeps = is_attention(graph, node) || is_sum_over_ranks(graph, node) ||
                (has_product(graph, node) && products[sliced_layer_of(node)]++ % 2 == 0);
        break;
    }
    for (const ValueId result : node.results) {
      kept[result.at()] = kept[result.at()] || keeps;
    }
  }
}

// What one layer's backward needs of its own forward.
class LayerRecompute {
 public:
  LayerRecompute(const Graph& graph,
                 GraphEdit& edit,
                 const std::vector<bool>& kept,
                 SlicedLayer layer)
      : graph_(graph), edit_(edit), kept_(kept), layer_(std::move(layer)) {}

  void run() {
    std::vector<NodeId> backward;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (sliced_layer_of(node) == layer_ && is_backward(node)) {
        backward.push_back(NodeId::of(i));
        need(node);
      }
    }
    const NodeId first = backward.empty() ? NodeId{} : backward.front();
    std::erase_if(backward, [&](NodeId id) { return takes_place_of_copy(id); });
    for (const NodeId id : backward) {
      redirect(id);
    }
    for (const NodeId source : needed_) {  // in node order
      insert_copy(first, graph_.nodes[source.at()]);
    }
  }

 private:
  bool is_own_forward(ValueId value) const {
    const ValueInfo& facts = graph_[value];
    if (facts.kind != ValueKind::kResult || kept_[value.at()]) {
      return false;
    }
    const Node& producer = graph_.nodes[facts.producer.at()];
    return sliced_layer_of(producer) == layer_ && producer.phase == Phase::kForward;
  }

  // Marks the forward nodes of the layer that `reader` needs for recomputation.
  void need(const Node& reader) {
    for (const ValueId operand : reader.operands) {
      if (is_own_forward(operand) && needed_.insert(graph_[operand].producer).second) {
        const Node& node = graph_.nodes[graph_[operand].producer.at()];
        for (const ValueId result : node.results) {
          copies_[result] = edit_.fresh();
        }
        need(node);
      }
    }
  }

  // Whether a backward node repeats a forward one that is recomputed, as collectives do whose
  // results are not kept, and views of them: they share the copy, which then makes the backward
  // node's results.
  bool takes_place_of_copy(NodeId id) {
    const Node& node = graph_.nodes[id.at()];
    std::vector<ValueId> operands = node.operands;
    for (ValueId& operand : operands) {
      const auto found = repeats_.find(operand);
      operand = found != repeats_.end() ? found->second : operand;
    }
    const auto same = std::ranges::find_if(needed_, [&](NodeId source) {
      const Node& other = graph_.nodes[source.at()];
      return other.operands == operands && equal(*other.op, *node.op);
    });
    if (same == needed_.end() || !shared_.insert(*same).second) {
      return false;
    }
    const std::vector<ValueId>& results = graph_.nodes[same->at()].results;
    for (std::size_t i = 0; i < results.size(); ++i) {
      copies_[results[i]] = node.results[i];
      repeats_[node.results[i]] = results[i];
    }
    edit_.remove(id);
    return true;
  }

  void redirect(NodeId id) {
    const Node& node = graph_.nodes[id.at()];
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      if (const auto found = copies_.find(node.operands[i]); found != copies_.end()) {
        edit_.set_operand(id, i, found->second);
      }
    }
  }

  void insert_copy(NodeId position, const Node& source) {
    Node copy = source;
    copy.phase = Phase::kBackward;
    for (ValueId& operand : copy.operands) {
      const auto found = copies_.find(operand);
      operand = found != copies_.end() ? found->second : operand;
    }
    for (ValueId& result : copy.results) {
      result = copies_.at(result);
    }
    edit_.insert(position, std::move(copy));
  }

  const Graph& graph_;
  GraphEdit& edit_;
  const std::vector<bool>& kept_;
  SlicedLayer layer_;
  std::set<NodeId> needed_;
  std::set<NodeId> shared_;  // of these, the ones whose copy stands for a backward node
  std::map<ValueId, ValueId> copies_;
  std::map<ValueId, ValueId> repeats_;  // results of backward nodes that are gone: the forward ones
};

}  // namespace

std::string_view name(RecomputeKept kept) {
  switch (kept) {
    case RecomputeKept::kInputs:
      return "inputs";
    case RecomputeKept::kLastStage:
      return "last_stage";
    case RecomputeKept::kAllButAttention:
      return "all_but_attention";
    case RecomputeKept::kEverySecondProduct:
      return "every_second_product";
  }
  return "?";
}

Graph recompute_layers(const Graph& graph, RecomputeKept how, std::int64_t end) {
  std::set<SlicedLayer> layers;
  for (const Node& node : graph.nodes) {
    if (node.layer >= 0 && node.layer < end) {
      layers.insert(sliced_layer_of(node));
    }
  }
  std::vector<bool> kept = find_kept(graph);
  add_kept(graph, how, kept);
  GraphEdit edit(graph);
  for (const SlicedLayer& layer : layers) {
    LayerRecompute(graph, edit, kept, layer).run();
  }
  return edit.apply();
}

}  // namespace tessera
