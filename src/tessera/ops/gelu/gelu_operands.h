#pragma once

#include "tessera/ir/view.h"
#include "tessera/ops/gelu/gelu.h"

namespace tessera {

// The operands and results of these ops by name. Those that an op's form lacks have no data.
struct GeluOperands {
  View x;     // (..)
  View bias;  // (C)
  View y;     // (..)
};

struct GeluBackwardOperands {
  View dy;    // (..): the gradient that arrives
  View x;     // (..)
  View bias;  // (C)
  View dx;    // (..)
};

// The only places that know the order of operands and results.
GeluOperands by_name(const GeluAttrs& attrs, const Views& views);
GeluBackwardOperands by_name(const GeluBackwardAttrs& attrs, const Views& views);

}  // namespace tessera
