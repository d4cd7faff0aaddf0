#include <algorithm>
#include <utility>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/pass.h"

namespace tessera {

std::int64_t rows_of_logits(std::int64_t vocab, std::int64_t logits_bytes) {
  constexpr std::int64_t kGranule = 256;  // what tiles of a product divide
  const std::int64_t rows = logits_bytes / (vocab * static_cast<std::int64_t>(sizeof(float)));
  return std::max(kGranule, rows / kGranule * kGranule);
}

Graph chunk_loss(Graph graph, std::int64_t logits_bytes) {
  for (Node& node : graph.nodes) {
    if (const auto* attrs = node.op->get_if<CrossEntropyAttrs>(); attrs != nullptr) {
      const std::int64_t vocab = graph[node.operands[1]].type.dims[0].bound;
      CrossEntropyAttrs chosen = *attrs;
      chosen.chunk = rows_of_logits(vocab, logits_bytes);
      node.op = make_op(chosen);
    }
  }
  return graph;
}

}  // namespace tessera
