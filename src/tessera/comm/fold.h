#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/comm/communicator.h"

namespace tessera {

// out[i] = fold of sources[0][i], sources[1][i], ... in this order, for out.count elements, and the
// same in each of `copies`. `out` and the copies may be sources. bf16 folds in f32 and rounds at
// the end. A maximum with a NaN is NaN.
// Errors: kUnsupported for other dtypes than f32, bf16, i64.
void fold_in_order(Fold fold,
                   std::span<const std::byte* const> sources,
                   const Elements& out,
                   std::span<std::byte* const> copies = {});

}  // namespace tessera
