#pragma once

#include <cstdint>
#include <span>

#include "tessera/passes/memory/instants.h"

namespace tessera {

// A stretch of the arena while something lives there.
struct Occupant {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;  // not 0
  std::span<const Instants::Range> lives = {};
};

// Moves what ends above `limit`, and what is in its way, until all of it lies in [0, limit) and
// none overlaps: what has no room takes the place of what is cheapest to move, the largest first.
// What was moved is dearer from then on, so that nobody takes turns. Of equal bytes, what comes
// first is moved first. Gives whether it came to an end within `most_moves`; else the offsets mean
// nothing. Occupants must fit below the limit one by one, and offsets and limit be multiples of
// one alignment, which the new ones are then as well.
bool fit_below(std::span<Occupant> occupants, std::int64_t limit, std::int64_t most_moves);

}  // namespace tessera
