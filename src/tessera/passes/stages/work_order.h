#pragma once

#include <cstdint>
#include <vector>

#include "tessera/actions/action_table.h"
#include "tessera/passes/program/order_calls.h"

namespace tessera {

// What a pipeline rank calls, in the order of its row of a schedule; a chunk is the place of a
// stage among the rank's own. Errors: kUnsupported for a backward in two parts.
std::vector<WorkStep> work_order(const ActionTable& table, std::int64_t rank);

}  // namespace tessera
