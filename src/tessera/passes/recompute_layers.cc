#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tessera/passes/graph_edit.h"
#include "tessera/passes/pass.h"

namespace tessera {
namespace {

bool is_backward(const Node& node) {
  return node.phase == Phase::kBackward || node.phase == Phase::kWeightGradient;
}

// What one layer's backward needs of its own forward.
class LayerRecompute {
 public:
  LayerRecompute(const Graph& graph, GraphEdit& edit, std::int32_t layer)
      : graph_(graph), edit_(edit), layer_(layer) {}

  void run() {
    NodeId first{};
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.layer == layer_ && is_backward(node)) {
        first = first.valid() ? first : NodeId::of(i);
        redirect(NodeId::of(i));
      }
    }
    for (const NodeId source : needed_) {  // in node order
      insert_copy(first, graph_.nodes[source.at()]);
    }
  }

 private:
  bool is_own_forward(ValueId value) const {
    const ValueInfo& facts = graph_[value];
    if (facts.kind != ValueKind::kResult) {
      return false;
    }
    const Node& producer = graph_.nodes[facts.producer.at()];
    return producer.layer == layer_ && producer.phase == Phase::kForward;
  }

  // Marks the producer of `value`, and what it reads within the layer, for recomputation.
  ValueId recomputed(ValueId value) {
    const NodeId producer = graph_[value].producer;
    if (needed_.insert(producer).second) {
      const Node& node = graph_.nodes[producer.at()];
      for (const ValueId result : node.results) {
        copies_[result] = edit_.fresh();
      }
      for (const ValueId operand : node.operands) {
        if (is_own_forward(operand)) {
          recomputed(operand);
        }
      }
    }
    return copies_.at(value);
  }

  void redirect(NodeId id) {
    const Node& node = graph_.nodes[id.at()];
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      if (is_own_forward(node.operands[i])) {
        edit_.set_operand(id, i, recomputed(node.operands[i]));
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
  std::int32_t layer_;
  std::set<NodeId> needed_;
  std::map<ValueId, ValueId> copies_;
};

}  // namespace

Graph recompute_layers(const Graph& graph) {
  std::set<std::int32_t> layers;
  for (const Node& node : graph.nodes) {
    if (node.layer >= 0) {
      layers.insert(node.layer);
    }
  }
  GraphEdit edit(graph);
  for (const std::int32_t layer : layers) {
    LayerRecompute(graph, edit, layer).run();
  }
  return edit.apply();
}

}  // namespace tessera
