#pragma once

#include "tessera/ir/view.h"
#include "tessera/ops/float8/float8.h"

namespace tessera {

// The operands and results of these ops by name. Those that an op's form lacks have no data.
struct AmaxOperands {
  View x;     // (r.., s..) or (s.., r..)
  View amax;  // (r..) f32
};

struct QuantizeFloat8Operands {
  View x;           // (r.., s..) or (s.., r..)
  View amax;        // (r..) f32
  View codes;       // like x
  View transposed;  // codes with their first dims behind the others
  View inverse;     // (r..) f32
};

struct TransposeCodesOperands {
  View codes;       // (r.., c..)
  View transposed;  // (c.., r..)
};

struct ScaledMatmulOperands {
  View a;            // (m.., k..)
  View b;            // (n.., k..)
  View inverse_a;    // () or (m..) f32
  View inverse_b;    // () or (n..) f32
  View accumulator;  // (m.., n..)
  View y;            // (m.., n..)
};

// The only places that know the order of operands and results.
AmaxOperands by_name(const AmaxAttrs& attrs, const Views& views);
QuantizeFloat8Operands by_name(const QuantizeFloat8Attrs& attrs, const Views& views);
TransposeCodesOperands by_name(const TransposeCodesAttrs& attrs, const Views& views);
ScaledMatmulOperands by_name(const ScaledMatmulAttrs& attrs, const Views& views);

}  // namespace tessera
