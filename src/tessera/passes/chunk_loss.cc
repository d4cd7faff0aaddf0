#include <algorithm>
#include <utility>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/pass.h"

namespace tessera {

namespace {

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

}  // namespace

std::int64_t rows_of_logits(std::int64_t vocab, DType logits, std::int64_t logits_bytes) {
  constexpr std::int64_t kGranule = 256;  // what tiles of a product divide
  const std::int64_t rows = logits_bytes / (vocab * static_cast<std::int64_t>(size_bytes(logits)));
  return std::max(kGranule, rows / kGranule * kGranule);
}

Graph chunk_loss(Graph graph, std::int64_t logits_bytes) {
  return edit_losses(std::move(graph), [&](CrossEntropyAttrs& attrs, std::int64_t vocab) {
    attrs.chunk = rows_of_logits(vocab, attrs.logits, logits_bytes);
  });
}

Graph round_logits(Graph graph) {
  return edit_losses(std::move(graph), [](CrossEntropyAttrs& attrs, std::int64_t /*vocab*/) {
    attrs.logits = DType::kBF16;
  });
}

}  // namespace tessera
