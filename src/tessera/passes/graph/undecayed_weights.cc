#include "tessera/passes/graph/undecayed_weights.h"

#include <algorithm>

#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

template <class Attrs>
bool is(const Graph& graph, NodeId id) {
  return graph.nodes[id.at()].op->get_if<Attrs>() != nullptr;
}

}  // namespace

std::set<std::string> undecayed_weights(const Graph& graph) {
  const auto readers = users(graph);
  std::set<std::string> names;
  for (const ValueId parameter : graph.trained_parameters()) {
    const auto& nodes = readers[parameter.at()];
    const bool is_bias =
        std::ranges::any_of(nodes, [&](NodeId id) { return is<AddBiasAttrs>(graph, id); });
    const bool is_table = !nodes.empty() && std::ranges::all_of(nodes, [&](NodeId id) {
      return is<EmbeddingAttrs>(graph, id);
    });
    if (graph[parameter].type.dims.size() < 2 || is_bias || is_table) {
      names.insert(graph[parameter].name);
    }
  }
  return names;
}

}  // namespace tessera
