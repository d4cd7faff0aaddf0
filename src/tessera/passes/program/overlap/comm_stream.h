#pragma once

#include <vector>

#include "tessera/passes/program/overlap/code_body.h"

namespace tessera {

// Puts on the comm stream the gathers and reductions of state, and what adds a reduced gradient to
// its accumulator, which is of no use to the layers: before the update only that stream touches it.
// Gives whether there are any.
bool choose_comm_stream(Program& program);

// The reductions of whole gradients need not wait for the update: each goes right after what
// finishes its gradient in a backward, and does its work in the last call of that code.
void reduce_before_update(std::vector<CodeBody>& codes, bool is_called_once);

}  // namespace tessera
