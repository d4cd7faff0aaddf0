#pragma once

#include "tessera/mesh/traffic.h"
#include "tessera/program/program.h"

namespace tessera {

// What one step sends, by mesh axis: the traffic of every instruction over the call list. A run
// counts the same (AxisCommunicators::sent).
Traffic step_traffic(const Program& program);

}  // namespace tessera
