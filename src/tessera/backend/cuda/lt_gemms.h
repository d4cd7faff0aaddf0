#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "tessera/backend/cuda/gemm.h"

namespace tessera::cuda {

// Products by cuBLASLt on the calling thread's device; of f32 with factors in tf32, or as they are.
// A shape's algorithm is the one that `algorithm_files` know (AlgorithmCache); else the fastest of
// those that the library proposes, timed when the shape first comes up and kept in the files. With
// no files it is the first that is proposed. Who times waits for all that stands before on the
// stream, so that files are for runs of one rank.
std::unique_ptr<Gemms> make_lt_gemms(bool tf32,
                                     const std::vector<std::filesystem::path>& algorithm_files);

}  // namespace tessera::cuda
