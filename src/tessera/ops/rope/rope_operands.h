#pragma once

#include "tessera/ir/view.h"
#include "tessera/ops/rope/rope.h"

namespace tessera {

// The operands and results of these ops by name. Those that an op's form lacks have no data.
struct RopeTableOperands {
  View positions;  // (..) i32
  View table;      // (.., head_dim) f32
};

struct RopeOperands {
  View x;      // (b, t, heads, head_dim)
  View table;  // (b, t, r) f32
  View y;      // (b, t, heads, head_dim)
  View amax;   // () f32
};

// The only places that know the order of operands and results.
RopeTableOperands by_name(const RopeTableAttrs& attrs, const Views& views);
RopeOperands by_name(const RopeAttrs& attrs, const Views& views);

}  // namespace tessera
