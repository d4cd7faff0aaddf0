#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"

namespace tessera {

// Each fusion looks at one node at a time and joins it with others; a node is taken once per pass.
class Fusion {
 public:
  explicit Fusion(const Graph& graph)
      : graph_(graph), edit_(graph), users_(users(graph)), is_output_(graph.values.size(), false) {
    for (const Output& output : graph.outputs) {
      is_output_[output.value.at()] = true;
    }
  }

  const Graph& graph() const { return graph_; }

  const Node& node(NodeId id) const { return graph_.nodes[id.at()]; }

  bool taken(NodeId id) const { return edit_.removed(id); }

  const std::vector<NodeId>& readers(ValueId value) const { return users_[value.at()]; }

  bool is_output(ValueId value) const { return is_output_[value.at()]; }

  // The only reader of `value`, if there is one and the value is no output.
  std::optional<NodeId> only_reader(ValueId value) const {
    const auto& list = readers(value);
    return list.size() == 1 && !is_output(value) ? std::optional(list[0]) : std::nullopt;
  }

  bool read_before(ValueId value, NodeId position) const {
    return !readers(value).empty() && readers(value).front() < position;
  }

  template <class A>
  const A* op(NodeId id) const {
    return taken(id) ? nullptr : node(id).op->get_if<A>();
  }

  void remove(const std::vector<NodeId>& parts) {
    for (const NodeId part : parts) {
      edit_.remove(part);
    }
  }

  void replace(const std::vector<NodeId>& parts, NodeId position, Node whole) {
    remove(parts);
    edit_.insert(position, std::move(whole));
  }

  // The same by several nodes, in their order.
  void replace_by(const std::vector<NodeId>& parts, NodeId position, std::vector<Node> whole) {
    remove(parts);
    for (Node& node : whole) {
      edit_.insert(position, std::move(node));
    }
  }

  ValueId fresh() { return edit_.fresh(); }

  bool changes() const { return edit_.changes(); }

  Graph apply() const { return edit_.apply(); }

 private:
  const Graph& graph_;
  GraphEdit edit_;
  std::vector<std::vector<NodeId>> users_;
  std::vector<bool> is_output_;
};

// Whether two nodes are of one phase, and of one chunk.
inline bool runs_beside(const Node& a, const Node& b) {
  return a.phase == b.phase && a.chunk == b.chunk;
}

// Calls `apply(fusion, node)` for every node in order.
template <class Apply>
Graph apply_to_all(Graph graph, Apply apply) {
  Fusion fusion(graph);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!graph.nodes[i].results.empty()) {
      apply(fusion, NodeId::of(i));
    }
  }
  if (!fusion.changes()) {
    return graph;
  }
  return fusion.apply();
}

}  // namespace tessera
