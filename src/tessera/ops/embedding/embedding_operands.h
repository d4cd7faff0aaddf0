#pragma once

#include "tessera/ir/view.h"
#include "tessera/ops/embedding/embedding.h"

namespace tessera {

// The operands and results of these ops by name. Those that an op's form lacks have no data.
struct EmbeddingOperands {
  View table;  // (V, C)
  View ids;    // (..) i32
  View y;      // (.., C)
};

struct EmbeddingBackwardOperands {
  View dy;           // (.., C): the gradient that arrives
  View ids;          // (..) i32
  View accumulator;  // (V, C) f32
  View dtable;       // (V, C) f32
};

// The only places that know the order of operands and results.
EmbeddingOperands by_name(const EmbeddingAttrs& attrs, const Views& views);
EmbeddingBackwardOperands by_name(const EmbeddingBackwardAttrs& attrs, const Views& views);

}  // namespace tessera
