#pragma once

#include "tessera/actions/split_layers.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/target.h"

namespace tessera {

// What the parts of the plan's model cost per microbatch, in seconds of a device that computes and
// reads as fast as the target's data sheet says, or as a usual one where it says nothing: each op
// takes as long as its arithmetic or its memory traffic. How ranks share a layer changes nothing of
// the ratios, and is left out; a layer that is computed again has its forward in its backward, too.
ModelCosts model_costs(const Plan& plan, const Target& target);

}  // namespace tessera
