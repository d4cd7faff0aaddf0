#pragma once

#include "tessera/program/program.h"

namespace tessera {

// After assign_slots(), in a pipeline, where microbatches have slots of pools in turn: gives each
// one slots of its own, and what lives in calls of one microbatch alone, as from one piece of a
// backward to another, a slot of a pool that all of these calls have. So every microbatch's buffers
// lie where there is room while that microbatch has them: arenas are smaller by up to a third than
// where several microbatches, of lives that hardly repeat, share an offset.
Program spread_slots(Program program);

}  // namespace tessera
