#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/embedding/embedding_cuda.h"
#include "tessera/ops/embedding/embedding_operands.h"

namespace tessera {

std::int64_t cuda_workspace_bytes(const EmbeddingBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results) {
  const auto of = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  const View::Rows rows = of.dy.rows(1);
  return cuda::EmbeddingScratch(nullptr, rows.count, rows.width).bytes + cuda::kWorkspaceAlignment;
}

}  // namespace tessera
