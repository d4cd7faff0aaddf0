#pragma once

#include <span>

#include "tessera/ir/view.h"
#include "tessera/ops/swiglu/swiglu.h"

namespace tessera {

// The operands and results of these ops by name.
struct SwigluOperands {
  View gate;                     // (..)
  View up;                       // (..)
  View y;                        // (..)
  std::span<const View> float8;  // of y, where they are asked for
};

struct SwigluBackwardOperands {
  View dy;                                // (..): the gradient that arrives
  View gate;                              // (..)
  View up;                                // (..)
  View dgate;                             // (..)
  View dup;                               // (..)
  std::span<const View> float8_of_dgate;  // where they are asked for
  std::span<const View> float8_of_dup;
};

// The only places that know the order of operands and results.
SwigluOperands by_name(const SwigluAttrs& attrs, const Views& views);
SwigluBackwardOperands by_name(const SwigluBackwardAttrs& attrs, const Views& views);

}  // namespace tessera
