#pragma once

#include "tessera/ir/view.h"
#include "tessera/ops/adamw/adamw.h"

namespace tessera {

// The operands and results of an update by name. Those that its form lacks have no data.
struct AdamwOperands {
  View parameter;  // (..)
  View gradient;   // (..)
  View m;          // (..)
  View v;          // (..)
  View master;     // (..) f32
  View lr;         // () f32
  View t;          // () f32
  View scale;      // () f32
  View apply;      // () f32
  View new_parameter;
  View new_m;
  View new_v;
  View new_master;
};

// The only place that knows the order of operands and results.
AdamwOperands by_name(const AdamwAttrs& attrs, const Views& views);

// Likewise, for kernels. Throws kInternal unless each result lies over its operand.
AdamwOperands by_name_in_place(const AdamwAttrs& attrs, const Views& views);

}  // namespace tessera
