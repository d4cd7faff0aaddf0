#pragma once

#include <cstdint>
#include <string>

#include "tessera/simulate/trace.h"

namespace tessera {

// The step over time as an SVG image of at most 200 kB, however long it is: a row for each stream
// of each process, in the colour of what it does, hatched where stream 0 or a leg waits; above
// stream 0 its actions with their microbatches; below all, the memory of the process that takes
// most, and `memory_limit` unless it is 0. What is narrower than a pixel is drawn as what most of
// that is.
std::string draw_trace(const StepTrace& trace, std::int64_t memory_limit);

}  // namespace tessera
