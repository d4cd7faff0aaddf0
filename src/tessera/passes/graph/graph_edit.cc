#include "tessera/passes/graph/graph_edit.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// A node of the edited graph; `kept` as it was.
struct EditedNode {
  const Node* node;
  bool kept;
};

// Which of `count` nodes, those that node_at(i) returns, are needed for the outputs, found
// backwards; those without results (a send) are done for something else.
template <class NodeAt>
std::vector<bool> needed_nodes(std::size_t count,
                               const NodeAt& node_at,
                               const std::vector<Output>& outputs,
                               std::size_t num_values) {
  std::vector<bool> read(num_values, false);
  for (const Output& output : outputs) {
    read[output.value.at()] = true;
  }
  std::vector<bool> needed(count, false);
  for (std::size_t i = count; i-- > 0;) {
    const Node& node = node_at(i);
    needed[i] = node.results.empty() || std::any_of(node.results.begin(),
                                                    node.results.end(),
                                                    [&](ValueId id) { return read[id.at()]; });
    if (!needed[i]) {
      continue;
    }
    for (const ValueId operand : node.operands) {
      read[operand.at()] = true;
    }
  }
  return needed;
}

// Copies sources and needed nodes into a new graph with dense ids. Types are inferred, but for kept
// nodes whose operands have the types that they had.
Graph rebuild(const Graph& original,
              const std::vector<EditedNode>& nodes,
              const std::vector<Output>& outputs,
              std::size_t num_values) {
  Graph result;
  result.name = original.name;
  result.values.reserve(num_values);
  result.nodes.reserve(nodes.size());
  std::vector<ValueId> renamed(num_values);
  std::vector<bool> same_type(num_values, false);
  for (std::size_t i = 0; i < original.values.size(); ++i) {
    if (original.values[i].kind != ValueKind::kResult) {
      renamed[i] = ValueId::of(result.values.size());
      same_type[i] = true;
      result.values.push_back(original.values[i]);
    }
  }
  const auto node_at = [&](std::size_t i) -> const Node& { return *nodes[i].node; };
  const std::vector<bool> needed = needed_nodes(nodes.size(), node_at, outputs, num_values);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!needed[i]) {
      continue;
    }
    Node node = *nodes[i].node;
    const bool same = nodes[i].kept && std::all_of(node.operands.begin(),
                                                   node.operands.end(),
                                                   [&](ValueId id) { return same_type[id.at()]; });
    for (ValueId& operand : node.operands) {
      TESSERA_CHECK(renamed[operand.at()].valid(),
                    "{} reads %{} before it is defined",
                    to_string(*node.op),
                    operand.index);
      operand = renamed[operand.at()];
    }
    TensorTypes types =
        same ? original.types(node.results) : infer(*node.op, result.types(node.operands));
    TESSERA_CHECK(types.size() == node.results.size(),
                  "{} has {} results, expected {}",
                  to_string(*node.op),
                  node.results.size(),
                  types.size());
    const NodeId id = NodeId::of(result.nodes.size());
    for (std::size_t r = 0; r < node.results.size(); ++r) {
      const ValueId value = ValueId::of(result.values.size());
      const std::size_t old = node.results[r].at();
      renamed[old] = value;
      same_type[old] =
          same || (old < original.values.size() && original.values[old].type == types[r]);
      node.results[r] = value;
      result.values.push_back(
          {.type = std::move(types[r]),
           .leaves = old < original.values.size() && original.values[old].leaves,
           .producer = id,
           .result_index = static_cast<std::int32_t>(r)});
    }
    result.nodes.push_back(std::move(node));
  }
  for (Output output : outputs) {
    TESSERA_CHECK(renamed[output.value.at()].valid(),
                  "output \"{}\" is %{}, which nothing makes",
                  output.name,
                  output.value.index);
    output.value = renamed[output.value.at()];
    if (output.updates) {
      output.updates = renamed[output.updates->at()];
    }
    result.outputs.push_back(std::move(output));
  }
  return result;
}

}  // namespace

GraphEdit::GraphEdit(const Graph& graph)
    : graph_(graph),
      num_values_(static_cast<std::int32_t>(graph.values.size())),
      removed_(graph.nodes.size(), false),
      inserted_(graph.nodes.size() + 1),
      outputs_(graph.outputs) {}

ValueId GraphEdit::fresh() {
  return {num_values_++};
}

void GraphEdit::remove(NodeId id) {
  removed_[id.at()] = true;
  is_edited_ = true;
}

void GraphEdit::insert(NodeId position, Node node) {
  inserted_[position.at()].push_back(std::move(node));
  is_edited_ = true;
}

void GraphEdit::set_operand(NodeId id, std::size_t index, ValueId value) {
  changed_.try_emplace(id, node(id)).first->second.operands[index] = value;
  is_edited_ = true;
}

void GraphEdit::set_chunk(NodeId id, std::int32_t chunk) {
  if (node(id).chunk != chunk) {
    changed_.try_emplace(id, node(id)).first->second.chunk = chunk;
    is_edited_ = true;
  }
}

bool GraphEdit::changes() const {
  if (is_edited_) {
    return true;
  }
  const auto node_at = [&](std::size_t i) -> const Node& { return graph_.nodes[i]; };
  const std::vector<bool> needed =
      needed_nodes(graph_.nodes.size(), node_at, outputs_, graph_.values.size());
  return std::ranges::find(needed, false) != needed.end();
}

Graph GraphEdit::apply() const {
  std::vector<EditedNode> nodes;
  for (std::size_t i = 0; i <= graph_.nodes.size(); ++i) {
    for (const Node& node : inserted_[i]) {
      nodes.push_back({.node = &node, .kept = false});
    }
    if (i < graph_.nodes.size() && !removed_[i]) {
      const auto changed = changed_.find(NodeId::of(i));
      const bool kept = changed == changed_.end();
      nodes.push_back({.node = kept ? &graph_.nodes[i] : &changed->second, .kept = kept});
    }
  }
  return rebuild(graph_, nodes, outputs_, static_cast<std::size_t>(num_values_));
}

bool same_content(const Graph& graph, ValueId a, ValueId b) {
  const ValueInfo& x = graph[a];
  const ValueInfo& y = graph[b];
  if (a == b || !x.producer.valid() || !y.producer.valid()) {
    return a == b;
  }
  const Node& first = graph.nodes[x.producer.at()];
  const Node& second = graph.nodes[y.producer.at()];
  return x.result_index == y.result_index && first.operands == second.operands &&
         equal(*first.op, *second.op);
}

bool is_view(const Node& node) {
  return info(*node.op).view != ViewKind::kNone;
}

Graph without_unread_sources(Graph graph, const std::function<bool(const ValueInfo&)>& may_go) {
  std::vector<bool> is_read(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (const ValueId operand : node.operands) {
      is_read[operand.at()] = true;
    }
  }
  for (const Output& output : graph.outputs) {
    is_read[output.value.at()] = true;
    if (output.updates) {
      is_read[output.updates->at()] = true;
    }
  }
  Graph result;
  result.name = graph.name;
  std::vector<ValueId> renamed(graph.values.size());
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const ValueKind kind = graph.values[i].kind;
    if (kind == ValueKind::kResult || kind == ValueKind::kScalar || is_read[i] ||
        !may_go(graph.values[i])) {
      renamed[i] = ValueId::of(result.values.size());
      result.values.push_back(std::move(graph.values[i]));
    }
  }
  const auto rename = [&](std::vector<ValueId>& values) {
    for (ValueId& value : values) {
      value = renamed[value.at()];
    }
  };
  for (Node& node : graph.nodes) {
    rename(node.operands);
    rename(node.results);
  }
  for (Output& output : graph.outputs) {
    output.value = renamed[output.value.at()];
    if (output.updates) {
      output.updates = renamed[output.updates->at()];
    }
  }
  result.nodes = std::move(graph.nodes);
  result.outputs = std::move(graph.outputs);
  return result;
}

Graph without_dead_nodes(const Graph& graph) {
  return GraphEdit(graph).apply();
}

}  // namespace tessera
