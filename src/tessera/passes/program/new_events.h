#pragma once

#include <algorithm>
#include <cstddef>

#include "tessera/program/program.h"

namespace tessera {

// The first number above those of all events that the program signals.
inline std::size_t first_free_event(const Program& program) {
  std::size_t next = 0;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      for (const EventId event : instruction.signals) {
        next = std::max(next, event.at() + 1);
      }
    }
  }
  return next;
}

}  // namespace tessera
