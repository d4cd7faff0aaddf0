#include "tessera/passes/graph/chunk_loss.h"

#include <algorithm>
#include <utility>

#include "tessera/passes/graph/edit_losses.h"

namespace tessera {

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

}  // namespace tessera
