#pragma once

#include <cstddef>
#include <vector>

#include "tessera/program/lives.h"
#include "tessera/program/program.h"
#include "tessera/program/region.h"
#include "tessera/program/stream_clocks.h"

namespace tessera {

// Segment by segment, of each instruction the operands, then the results.
using TensorRegions = std::vector<Region>;

// Buffers or events in the slots of a pool, numbered from `first`.
struct Slots {
  PoolId pool = {};
  std::size_t first = 0;
};

// A use of a buffer by an instruction.
struct Access {
  BufferId buffer = {};
  Slots slots = {};
  Region region = {};  // none of a workspace
};

// What the instructions of a program use, segment by segment.
struct StepUses {
  // Where those of a segment begin.
  struct Begin {
    std::size_t access = 0;
    std::size_t event = 0;
  };

  std::vector<Begin> begins;     // by segment
  std::vector<Access> accesses;  // operands, the workspace if there is one, and results
  std::vector<Slots> events;     // that are waited for, and that are signalled
};

// Adds the events to `clocks`.
StepUses uses_of(const Program& program,
                 const TensorRegions& regions,
                 const SlotNumbers& numbers,
                 StreamClocks& clocks);

}  // namespace tessera
