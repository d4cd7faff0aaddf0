#pragma once

#include <cstdint>
#include <span>

#include "tessera/ir/op.h"
#include "tessera/ir/view.h"

namespace tessera::cpu {

class Context;

// Workspace bytes that run_op() needs for tensors that lie like these views.
std::int64_t op_workspace_bytes(Context& context,
                                const Op& op,
                                std::span<const View> operands,
                                std::span<const View> results);

// Executes the op's CPU kernel.
void run_op(Context& context, const Op& op, const Views& views);

}  // namespace tessera::cpu
