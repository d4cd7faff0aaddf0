#pragma once

#include "tessera/program/program.h"

namespace tessera {

// Has the gathers of a step's start run on the stream "comm", beside the work that follows: each is
// waited for by what first touches it in each segment. What they read and work in lives as long as
// the step. After overlap(), which leaves the start alone; before assign_slots(). A program whose
// start gathers nothing stays as it is. Bitwise the same results.
Program gather_beside(Program program);

}  // namespace tessera
