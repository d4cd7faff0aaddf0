#pragma once

#include <cstdint>
#include <vector>

#include "tessera/actions/action_table.h"

namespace tessera {

// A table of forwards alone over stages that lie on ranks in any way, for what trains nothing: a
// rank does what has come furthest of what it may do, so that little waits between two stages.
// The ranks are 0 to the largest of `rank_of_stage`.
ActionTable forwards(std::vector<std::int64_t> rank_of_stage, std::int64_t microbatches);

}  // namespace tessera
