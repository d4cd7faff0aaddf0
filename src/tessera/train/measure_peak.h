#pragma once

#include "tessera/backend/backend.h"
#include "tessera/ir/dtype.h"

namespace tessera {

// FLOP per second of `backend` at its best: the fastest of the products of 512x512x512 in `dtype`
// that fit in about 50 ms. What a step reaches is compared with it.
double measure_peak(Backend& backend, DType dtype);

}  // namespace tessera
