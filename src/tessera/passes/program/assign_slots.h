#pragma once

#include "tessera/program/program.h"

namespace tessera {

// Between overlap() and plan_memory(): gives each call a slot of every pool that it touches, and
// each pool as few slots as the order of the calls allows. The calls of a microbatch have one slot
// of a pool from the first of them that touches it to the last, by which other streams must have
// ended what they do with it; then another microbatch may have it. What lives always is the host's,
// which writes all microbatches before the step: such a pool has a slot for each.
Program assign_slots(Program program);

}  // namespace tessera
