#pragma once

#include "tessera/ir/view.h"
#include "tessera/ops/write_rows/write_rows.h"

namespace tessera {

// The operands and the result by name.
struct WriteRowsOperands {
  View cache;  // (b, s, h, c)
  View x;      // (b, t, h, c)
  View slots;  // (b, t) i32
  View y;      // (b, s, h, c)
};

// The only place that knows the order of operands.
WriteRowsOperands by_name(const WriteRowsAttrs& attrs, const Views& views);

}  // namespace tessera
