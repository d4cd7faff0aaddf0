#pragma once

#include <span>

#include "tessera/ir/view.h"
#include "tessera/ops/gradient_norm/gradient_norm.h"

namespace tessera {

// The operands and results of these ops by name.
struct SumSquaresOperands {
  std::span<const View> tensors;
  View words;  // (kExactSumWords) i64
};

struct ClipScaleOperands {
  std::span<const View> sums;  // each (kExactSumWords) i64
  View loss;                   // () f32
  View apply;                  // () f32
  View norm;                   // () f32
  View scale;                  // () f32
  View ok;                     // () f32
};

// The only places that know the order of operands and results.
SumSquaresOperands by_name(const SumSquaresAttrs& attrs, const Views& views);
ClipScaleOperands by_name(const ClipScaleAttrs& attrs, const Views& views);

}  // namespace tessera
