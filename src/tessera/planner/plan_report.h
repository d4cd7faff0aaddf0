#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/mesh/cluster.h"
#include "tessera/planner/find_plans.h"

namespace tessera {

// As text for people, and as JSON (docs/formats.md).
std::string plans_text(const FoundPlans& found, const RunConfig& config, const Cluster& cluster);
std::string plans_json(const FoundPlans& found, const RunConfig& config, const Cluster& cluster);

// What is found for one number of ranks.
struct PlanSweepRow {
  std::string ranks;
  std::string problem = {};  // why there is no plan; else:
  FoundPlans found = {};
};

std::string plan_sweep_text(const std::vector<PlanSweepRow>& rows, const Cluster& cluster);
std::string plan_sweep_json(const std::vector<PlanSweepRow>& rows, const Cluster& cluster);

// The run file of plan 1, with what it is in a comment on top.
std::string best_run_file(const FoundPlans& found, const RunConfig& config, const Cluster& cluster);

// Why the plan that `words` name is not plan 1: what it needs where it does not fit, else what
// costs it time. Of several plans the fastest that is found. Errors: kInvalidConfig where no plan
// has the words.
std::string why_text(const FoundPlans& found,
                     const RunConfig& config,
                     const Cluster& cluster,
                     const PlannerOptions& options,
                     std::string_view words);

}  // namespace tessera
