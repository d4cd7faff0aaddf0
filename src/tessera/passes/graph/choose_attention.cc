#include "tessera/passes/graph/choose_attention.h"

#include <utility>

#include "tessera/ops/all_ops.h"

namespace tessera {

Graph choose_attention(Graph graph, const AttentionChoices& choices) {
  for (Node& node : graph.nodes) {
    if (const auto* attrs = node.op->get_if<AttentionAttrs>(); attrs != nullptr) {
      AttentionAttrs chosen = *attrs;
      chosen.whole_rows = choices.whole_rows;
      chosen.any_order = choices.any_order;
      chosen.spread = choices.spread;
      chosen.by_heads = choices.by_heads;
      chosen.ring = choices.ring;
      node.op = make_op(chosen);
    }
  }
  return graph;
}

}  // namespace tessera
