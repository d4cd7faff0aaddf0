#pragma once

#include <string>

#include "tessera/config/run_config.h"
#include "tessera/passes/memory/recompute_rule.h"
#include "tessera/plan/plan.h"

namespace tessera {

// The rules of memory.recompute and what goes with it, for a plan whose pipeline is known; none
// where that is "none" or "auto". Errors: kInvalidConfig where memory.recompute_layers are not
// layers of the model.
RecomputeRules recompute_rules(const RunConfig& config, const Plan& plan);

// The rules in words: "layers 0-3 keep their inputs alone; layer 4 keeps attention.0, matmul.2 and
// stores add.1".
std::string to_string(const RecomputeRules& rules);

}  // namespace tessera
