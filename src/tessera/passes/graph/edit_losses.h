#pragma once

#include "tessera/ir/graph.h"
#include "tessera/ops/all_ops.h"

namespace tessera {

// edit(attrs, vocab) for every loss.
template <class Edit>
Graph edit_losses(Graph graph, const Edit& edit) {
  for (Node& node : graph.nodes) {
    if (const auto* attrs = node.op->get_if<CrossEntropyAttrs>(); attrs != nullptr) {
      CrossEntropyAttrs chosen = *attrs;
      edit(chosen, graph[node.operands[1]].type.dims[0].bound);
      node.op = make_op(chosen);
    }
  }
  return graph;
}

}  // namespace tessera
