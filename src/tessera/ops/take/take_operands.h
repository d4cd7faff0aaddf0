#pragma once

#include "tessera/ir/view.h"
#include "tessera/ops/take/take.h"

namespace tessera {

// The operands and the result by name.
struct TakeOperands {
  View x;      // (b, t, C)
  View index;  // (b) i32
  View y;      // (b, 1, C)
};

// The only place that knows the order of operands.
TakeOperands by_name(const TakeAttrs& attrs, const Views& views);

}  // namespace tessera
