#pragma once

#include <memory>

#include "tessera/backend/cuda/graphs.h"

namespace tessera::cuda {

// Graphs by cuDNN on the calling thread's device. Where the machine has none, or it takes a problem
// not, a warning says so, once each.
std::unique_ptr<Graphs> make_cudnn_graphs();

}  // namespace tessera::cuda
