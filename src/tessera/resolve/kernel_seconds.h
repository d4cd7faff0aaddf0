#pragma once

#include "tessera/ir/dtype.h"
#include "tessera/ir/graph.h"
#include "tessera/mesh/device_spec.h"
#include "tessera/passes/memory/recompute_choices.h"

namespace tessera {

// What nodes take on the device, in seconds; on a usual core where nobody says how fast it is.
NodeSeconds kernel_seconds(const DeviceSpec& device, DType dtype);

// The time of what a graph does for each microbatch.
double microbatch_seconds(const Graph& graph, const NodeSeconds& seconds);

}  // namespace tessera
