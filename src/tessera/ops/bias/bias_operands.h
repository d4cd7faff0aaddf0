#pragma once

#include "tessera/ir/view.h"
#include "tessera/ops/bias/bias.h"

namespace tessera {

// The operands and results of these ops by name.
struct AddBiasOperands {
  View x;     // (m.., n..)
  View bias;  // (n..)
  View y;     // (m.., n..)
};

struct BiasGradientOperands {
  View dy;     // (m.., n..): the gradient that arrives
  View dbias;  // (n..) f32
};

// The only places that know the order of operands and results.
AddBiasOperands by_name(const AddBiasAttrs& attrs, const Views& views);
BiasGradientOperands by_name(const BiasGradientAttrs& attrs, const Views& views);

}  // namespace tessera
