#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/mesh/cluster.h"
#include "tessera/planner/plan_choice.h"
#include "tessera/planner/search.h"
#include "tessera/planner/space.h"

namespace tessera {

struct PlannerOptions {
  SearchOptions search = {};
  AllowedChoices allowed = {};
  std::string_view words = {};  // that each plan has which is looked at; empty: any (has_words())
  std::string_view why = {};    // that some plan of the space must have, before any is looked at
};

struct RankedPlan {
  PlanChoice choice;
  PlanOutcome outcome;
};

// What `tessera plan` says of a run on a cluster, before it is written down.
struct FoundPlans {
  std::int64_t ranks = 0;
  std::int64_t tokens_per_step = 0;
  std::int64_t size = 0;     // of the space
  std::int64_t refused = 0;  // plans that passes or kernels do not take
  std::int64_t too_large = 0;
  std::int64_t cut = 0;
  std::int64_t open = 0;
  std::int64_t simulated = 0;
  double took = 0.0;                     // seconds
  double lower = 0.0;                    // no plan is faster
  bool ran_out = false;                  // of time
  std::vector<RankedPlan> plans;         // simulated: the proposed one, then by their time
  std::int64_t tied = 1;                 // of `plans`, the first: within 1 % of the fastest
  std::string tied_by = {};              // what put plan 1 before the others of these
  std::optional<RankedPlan> least = {};  // where none fits: of those that were tried
  std::string refusal = {};             // of the first plan that cannot be compiled: which, and why
  std::optional<PlanOutcome> own = {};  // of the run file's plan
  std::string own_problem = {};         // why there is none

  // How much slower than the fastest of the space plan 1 may be, as a share.
  double gap() const;
};

// Ranks that the run asks for: its degrees, or all of the cluster's devices.
std::int64_t planned_ranks(const RunConfig& config, const Cluster& cluster);

// `config` as file and command line have it, for the devices of `cluster`, whose file it names.
// The space has the plan of `config`, too, where it makes one. Among plans that are within 1 % of
// the fastest that was found, the proposed one changes no numbers, then has the fewest axes, then
// takes least memory. Errors: kInvalidConfig; kOutOfMemory, with the plan that takes least and what
// it needs, where none fits.
FoundPlans find_plans(const RunConfig& config,
                      const Cluster& cluster,
                      const PlannerOptions& options);

// The same, but where none fits there are no plans, and `least`.
FoundPlans find_plans_or_least(const RunConfig& config,
                               const Cluster& cluster,
                               const PlannerOptions& options);

// `config` without a limit of its own for memory.
RunConfig without_limit(RunConfig config);

}  // namespace tessera
