#pragma once

#include <cstdint>

#include "tessera/program/program.h"

namespace tessera {

// A program whose microbatches do not add up, without its calls of all but the first `count` of
// them: a step of fewer microbatches, with everything where it was. Verified.
//   F(0) F(1) F(2)  ->  F(0) F(1)
// Errors: kInternal unless 0 < count <= program.num_microbatches; those of verify().
Program first_microbatches(Program program, std::int64_t count);

}  // namespace tessera
