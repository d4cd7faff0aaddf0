#pragma once

#include <cstdint>

#include "tessera/actions/split_layers.h"
#include "tessera/mesh/cluster.h"
#include "tessera/plan/plan.h"

namespace tessera {

// What the parts of the plan's model cost a rank per microbatch, in seconds where `device` has
// a speed (has_speed()), and else in the time of a FLOP of a usual one: each op takes as long as
// its arithmetic or its memory traffic. Data and tensor ranks share all evenly; a layer that is
// computed again has its forward in its backward, too.
ModelCosts model_costs(const Plan& plan, const DeviceSpec& device);

// Whether it is known how fast the device computes in `dtype` and reads.
bool has_speed(const DeviceSpec& device, DType dtype);

// How much more FLOP of the layers the last token of a sequence needs than the first, over those of
// the first: what split_tokens() takes. The same for any layout and device.
double token_growth(const Plan& plan);

// What a rank sends from a layer to the next one, forward, of a microbatch: the most of all.
std::int64_t boundary_bytes(const Plan& plan);

}  // namespace tessera
