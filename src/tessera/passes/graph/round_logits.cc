#include "tessera/passes/graph/round_logits.h"

#include <cstdint>
#include <utility>

#include "tessera/passes/graph/edit_losses.h"

namespace tessera {

Graph round_logits(Graph graph) {
  return edit_losses(std::move(graph), [](CrossEntropyAttrs& attrs, std::int64_t /*vocab*/) {
    attrs.logits = DType::kBF16;
  });
}

}  // namespace tessera
