#pragma once

#include <cstddef>
#include <vector>

#include "tessera/program/lives.h"
#include "tessera/program/program.h"
#include "tessera/program/region.h"

namespace tessera {

// Segment by segment, of each instruction the operands, then the results.
using TensorRegions = std::vector<Region>;

// A buffer in the slots of its pool, numbered from `first`.
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
  std::vector<std::size_t> begins;  // by segment, where its accesses do
  std::vector<Access> accesses;     // operands, the workspace if there is one, and results
};

StepUses uses_of(const Program& program, const TensorRegions& regions, const SlotNumbers& numbers);

}  // namespace tessera
