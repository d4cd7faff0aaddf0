#pragma once

#include <cstdint>
#include <span>

#include "tessera/ir/op.h"
#include "tessera/ir/view.h"

namespace tessera::cuda {

// Workspace bytes that the op's CUDA kernels need for tensors that lie like these views. It needs
// neither a device nor the plugin.
std::int64_t op_workspace_bytes(const Op& op,
                                std::span<const View> operands,
                                std::span<const View> results);

}  // namespace tessera::cuda
