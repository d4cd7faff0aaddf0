#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/mesh/cluster.h"
#include "tessera/planner/find_plans.h"
#include "tessera/resolve/simulation_sweep.h"

namespace tessera {

// As text for people, and as JSON (docs/formats.md).
std::string plans_text(const FoundPlans& found, const RunConfig& config, const Cluster& cluster);
std::string plans_json(const FoundPlans& found, const RunConfig& config, const Cluster& cluster);

// What is found for one number of ranks.
struct PlanSweepRow {
  SweepRow row;           // of plan 1
  RunConfig config = {};  // with so many ranks
  FoundPlans found = {};
};

// Finds plans for the config that `config` makes; the problem where there are none (sweep_row()).
PlanSweepRow plan_sweep_row(const std::string& ranks,
                            const Cluster& cluster,
                            const PlannerOptions& options,
                            const std::function<RunConfig()>& config);

std::string plan_sweep_text(const Sweep& sweep, const std::vector<PlanSweepRow>& rows);
std::string plan_sweep_json(const Sweep& sweep, const std::vector<PlanSweepRow>& rows);

// The run file of plan 1, with what it is in a comment on top.
std::string best_run_file(const FoundPlans& found, const RunConfig& config, const Cluster& cluster);

// Why the plan that `options.why` names is not plan 1: what its memory holds where it does not fit,
// else what costs it time. Of several plans the fastest that is found. Errors: those of
// find_plans().
std::string why_text(const FoundPlans& found,
                     const RunConfig& config,
                     const Cluster& cluster,
                     const PlannerOptions& options);

}  // namespace tessera
