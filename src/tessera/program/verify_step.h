#pragma once

#include <map>

#include "tessera/program/program.h"
#include "tessera/program/region.h"
#include "tessera/program/step_uses.h"

namespace tessera {

// What is written of buffers before a step: by the host, or by an earlier step.
using WrittenBefore = std::map<BufferId, Written>;

// What verify() says of lives, of what is written when it is read, and of the order of uses, over
// the whole call list. All that holds in every call alike must have been checked.
// Errors: kInternal, naming segment, microbatch, instruction and buffer.
void verify_step(const Program& program, const WrittenBefore& there, const TensorRegions& regions);

}  // namespace tessera
