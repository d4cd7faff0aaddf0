#pragma once

#include "tessera/ir/dtype.h"
#include "tessera/ir/graph.h"
#include "tessera/mesh/device_spec.h"
#include "tessera/passes/memory/recompute_choices.h"

namespace tessera {

// The device, or a usual core where nobody says how fast it is.
DeviceSpec known_device(const DeviceSpec& device, DType dtype);

// What nodes take on known_device(), in seconds.
NodeSeconds kernel_seconds(const DeviceSpec& device, DType dtype);

// The time of what a graph does for each microbatch.
double microbatch_seconds(const Graph& graph, const NodeSeconds& seconds);

}  // namespace tessera
