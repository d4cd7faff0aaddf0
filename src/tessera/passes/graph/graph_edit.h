#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "tessera/ir/graph.h"

namespace tessera {

// A set of changes to a graph, applied at once. Nodes are named by their place in the original;
// values by their original id or by one from fresh(). A result that keeps an original id stands for
// the value of a removed node, so that its readers need no change.
class GraphEdit {
 public:
  // Borrows the graph until apply().
  explicit GraphEdit(const Graph& graph);

  const Graph& graph() const { return graph_; }

  const Node& node(NodeId id) const { return graph_.nodes[id.at()]; }

  // An id for a new value; its type is inferred when the edit is applied.
  ValueId fresh();

  void remove(NodeId id);

  bool removed(NodeId id) const { return removed_[id.at()]; }

  // Puts `node` before the original node `position` (removed or not), after nodes that were put
  // there earlier.
  void insert(NodeId position, Node node);

  // Replaces operand `index` of the original node `id`.
  void set_operand(NodeId id, std::size_t index, ValueId value);

  // Puts the original node `id` into another chunk.
  void set_chunk(NodeId id, std::int32_t chunk);

  // Replaces all outputs; they may name fresh values and values of removed nodes that others make.
  void set_outputs(std::vector<Output> outputs) {
    outputs_ = std::move(outputs);
    is_edited_ = true;
  }

  // Whether the edited graph differs: something was edited, or there is a node with results that
  // nobody reads.
  bool changes() const;

  // The edited graph: values renumbered, nodes with results that nobody reads dropped, types
  // inferred. compile() verifies it after the pass.
  Graph apply() const;

 private:
  const Graph& graph_;
  std::int32_t num_values_;
  std::vector<bool> removed_;
  std::vector<std::vector<Node>> inserted_;
  std::map<NodeId, Node> changed_;  // with other operands, or of another chunk
  std::vector<Output> outputs_;
  bool is_edited_ = false;
};

// Whether two values are one, or results of equal nodes on the same operands: a collective that is
// repeated, say.
bool same_content(const Graph& graph, ValueId a, ValueId b);

// The same graph without nodes with results that nobody reads; values renumbered in order of
// definition.
Graph without_dead_nodes(const Graph& graph);

// Whether a node makes another view of an operand's memory, which is no work.
bool is_view(const Node& node);

// The same graph without inputs and states that nothing reads or updates, of those that `may_go`.
// Scalars stay: the host sets them on every rank.
Graph without_unread_sources(
    Graph graph,
    const std::function<bool(const ValueInfo&)>& may_go = [](const ValueInfo& /*source*/) {
      return true;
    });

}  // namespace tessera
