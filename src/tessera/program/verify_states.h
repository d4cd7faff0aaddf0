#pragma once

#include "tessera/program/program.h"

namespace tessera {

// The part of verify() that is about what states are. Throws kInternal naming the state unless all
// are what verify_states() expects, lie in buffers of their category, and what gathers a secondary
// copy sends it in the formats that the copy names.
void verify_states(const Program& program);

}  // namespace tessera
