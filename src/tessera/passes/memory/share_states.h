#pragma once

#include "tessera/program/program.h"

namespace tessera {

// Between lower() and plan_memory(): lays the states of `program` where the planned program `owner`
// has those of the same names, and keeps its other states' memory free, so that both can run in one
// arena in turn. Errors: kInternal where owner lacks a state, or its tensor lies otherwise.
Program share_states(Program program, const Program& owner);

}  // namespace tessera
