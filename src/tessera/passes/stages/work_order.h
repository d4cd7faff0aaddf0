#pragma once

#include <cstdint>
#include <vector>

#include "tessera/actions/action_table.h"
#include "tessera/passes/program/order_calls.h"

namespace tessera {

// When a transfer may begin: whatever other streams are at, or only when the one that its rank has
// called before has ended, as it is at worst where a device has one queue for all that its streams
// launch.
enum class TransferLaunch : std::uint8_t { kByStream, kInOneQueue };

// What each pipeline rank calls, in the order of its row of a schedule. Chunks are numbered by
// stage, in the order of the rank's own, and of a stage by slice. In a row that has backwards in
// two parts, whole ones are both parts in turn. A receive stands before the first work that comes
// after the work that sends, in one order of all ranks' works in which each comes after those that
// it waits for, and at least one work ahead of its reader: so all ranks come to the end of any
// table that check() takes, even where a send ends with its receive alone. In one queue a receive
// is that far ahead only where the work that it would then stand before is not what the sender
// waits for, directly or through other receives. Receives of one action are in the order of their
// sends.
std::vector<std::vector<WorkStep>> work_orders(const ActionTable& table, TransferLaunch launch);

}  // namespace tessera
