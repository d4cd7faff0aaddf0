#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/config/run_config.h"
#include "tessera/passes/memory/recompute_rule.h"
#include "tessera/plan/plan.h"

namespace tessera {

// The rules of memory.recompute and what goes with it, for a plan whose pipeline is known; none
// where that is "none" or "auto". Errors: kInvalidConfig where memory.recompute_layers are not
// layers of the model.
RecomputeRules recompute_rules(const RunConfig& config, const Plan& plan);

// What "auto" chose where a rank may use so many bytes, of the run that takes `all_bytes` where all
// is kept: another number is that of other steps.
struct RecomputeChoice {
  std::int64_t limit = 0;
  std::int64_t all_bytes = 0;
  RecomputeRules rules = {};  // of which each names the ops that are kept

  friend bool operator==(const RecomputeChoice&, const RecomputeChoice&) = default;
};

// As memory.chosen has it, "6000000000 of 9000000000: 0-3 add.0 attention.0; 4-30": both numbers of
// bytes, then layers with what they keep beside their inputs. Errors: kInvalidConfig where the text
// is none.
std::string to_string(const RecomputeChoice& choice);
RecomputeChoice parse_recompute_choice(std::string_view text);

// The rules in words: "layers 0-3 keep their inputs alone; layer 4 keeps attention.0, matmul.2".
std::string to_string(const RecomputeRules& rules);

}  // namespace tessera
