#pragma once

#include <memory>

#include "tessera/backend/cuda/cudnn/graphs.h"

namespace tessera::cuda {

// Graphs by cuDNN on the calling thread's device, loaded when the first is run. Where the machine
// has none that can be used, or it does not take a problem, a warning says so, once each.
std::unique_ptr<Graphs> make_cudnn_graphs();

}  // namespace tessera::cuda
