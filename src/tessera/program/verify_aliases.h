#pragma once

#include "tessera/program/program.h"

namespace tessera {

// Errors: kInternal unless the instruction has as many operands and results as its op, a result
// shares no byte with other results or the workspace, and where it shares bytes with an operand,
// the op allows it and both lie exactly alike.
void verify_aliases(const Instruction& instruction);

}  // namespace tessera
