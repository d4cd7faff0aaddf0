#pragma once

#include "tessera/program/program.h"

namespace tessera {

// After assign_slots(), in a pipeline, where microbatches have slots of pools in turn: gives each
// one slots of its own, or, where there are many, one that nobody has had for long; and what lives
// in calls of one microbatch alone, as from one piece of a backward to another, a slot of a pool
// that all of these calls have. A slot that several have in turn lies where there is room whenever
// one of them has it, a life of its own where there is room just then, which makes arenas smaller
// by up to a third.
Program spread_slots(Program program);

}  // namespace tessera
