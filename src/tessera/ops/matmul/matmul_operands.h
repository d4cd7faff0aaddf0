#pragma once

#include "tessera/ir/view.h"
#include "tessera/ops/matmul/matmul.h"

namespace tessera {

// The operands and results of a product by name. Those that its form lacks have no data.
struct MatmulOperands {
  View a;            // (m.., k..) or (k.., m..)
  View b;            // (k.., n..) or (n.., k..)
  View accumulator;  // (m.., n..)
  View bias;         // (n..)
  View y;            // (m.., n..)
  View argument;     // (m.., n..): what gelu is of, an operand of its gradient, a result where kept
};

// The only place that knows the order of operands and results.
MatmulOperands by_name(const MatmulAttrs& attrs, const Views& views);

}  // namespace tessera
