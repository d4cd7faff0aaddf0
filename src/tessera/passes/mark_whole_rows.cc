#include <utility>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/pass.h"

namespace tessera {

Graph mark_whole_rows(Graph graph) {
  for (Node& node : graph.nodes) {
    if (const auto* attrs = node.op->get_if<AttentionAttrs>(); attrs != nullptr) {
      AttentionAttrs whole = *attrs;
      whole.whole_rows = true;
      node.op = make_op(whole);
    }
  }
  return graph;
}

}  // namespace tessera
