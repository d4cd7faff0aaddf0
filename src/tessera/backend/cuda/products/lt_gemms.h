#pragma once

#include <memory>

#include "tessera/backend/cuda/products/gemm.h"
#include "tessera/backend/devices.h"

namespace tessera::cuda {

// Products by cuBLASLt on the calling thread's device, as options.tf32, .algorithm_files and
// .shares_choices say. A shape's algorithm is the one that the files know (AlgorithmCache); else
// the fastest of those that the library proposes, timed when the shape first comes up and kept in
// the files. With no files it is the first that is proposed. Where choices are shared, it is the
// rank's own fastest until take_choices(). Who times waits for all that stands before on the
// stream.
std::unique_ptr<Gemms> make_lt_gemms(const DeviceOptions& options);

}  // namespace tessera::cuda
