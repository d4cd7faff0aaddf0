#pragma once

#include <memory>

#include "tessera/comm/mover.h"

namespace tessera::cuda {

class Context;

// Moves by kernels on the context's stream; finish() waits for it. Pointers are into the memory of
// the context's device, or of one that it may read and write. Bits are the host's, but for the sign
// and payload of a NaN that is rounded to bf16 or added up. Borrows `context`.
// Errors: kUnsupported for more than 64 parts of one sum.
std::unique_ptr<Mover> make_device_mover(const Context& context);

}  // namespace tessera::cuda
