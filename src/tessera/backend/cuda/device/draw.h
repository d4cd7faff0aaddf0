#pragma once

#include "tessera/backend/cuda/device/context.h"
#include "tessera/base/random.h"
#include "tessera/ir/view.h"

namespace tessera::cuda {

// Backend::draw() as the next of the context's stream.
// Errors: kUnsupported for dtypes other than f32 and bf16.
void draw_elements(const Context& context, const Initial& initial, const View& out);

}  // namespace tessera::cuda
