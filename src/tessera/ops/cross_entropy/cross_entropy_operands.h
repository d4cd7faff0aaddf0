#pragma once

#include "tessera/ir/view.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"

namespace tessera {

// The operands and results of the loss by name. Those that its form lacks have no data.
struct CrossEntropyOperands {
  View x;                           // (.., C)
  View head;                        // (V, C)
  View labels;                      // (..) i32
  View seed;                        // () f32
  View inverse_x;                   // () or (..) f32
  View inverse_head;                // () or (V) f32
  View head_transposed;             // (C, V)
  View inverse_of_head_transposed;  // () or (C) f32
  View x_transposed;                // (C, ..)
  View inverse_of_x_transposed;     // () or (C) f32
  View accumulator;                 // (V, C) f32
  View loss;                        // () f32
  View dx;                          // (.., C)
  View dhead;                       // (V, C) f32
};

// The only place that knows the order of operands and results.
CrossEntropyOperands by_name(const CrossEntropyAttrs& attrs, const Views& views);

}  // namespace tessera
