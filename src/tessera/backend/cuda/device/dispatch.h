#pragma once

#include <span>

#include "tessera/backend/cuda/device/context.h"
#include "tessera/ir/op.h"
#include "tessera/ir/view.h"

namespace tessera::cuda {

// Starts the op's CUDA kernels on the context's stream. Errors: kUnsupported for an op without.
void run_op(Context& context, const Op& op, const Views& views);

// Whether run_op() waits for other ranks.
bool waits_for_ranks(const Op& op, std::span<const TensorType> operands);

}  // namespace tessera::cuda
