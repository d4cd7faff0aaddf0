#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/mesh/cluster.h"
#include "tessera/plan/target.h"
#include "tessera/planner/plan_choice.h"
#include "tessera/planner/state_choices.h"

namespace tessera {

// Of "int8,overlap". Errors: kInvalidConfig quoting the text.
AllowedChoices parse_allowed(std::string_view text);

// `config`, as file and command line have it, with all that does not depend on the plan filled in,
// for the devices of the cluster. Errors: kInvalidConfig.
RunConfig filled_in(const RunConfig& config, const Cluster& cluster, std::int64_t ranks);

// All plans of a run on so many ranks of a cluster, each once and in an order that is always the
// same: mesh, microbatch, schedule and chunks, recompute, layers that state is ahead, placement of
// states. `config` is filled_in(). A plan is left out where the rules of the run file refuse it.
std::vector<PlanChoice> plan_space(const RunConfig& config,
                                   const Cluster& cluster,
                                   std::int64_t ranks,
                                   const AllowedChoices& allowed);

// What was left out of that and why: "t1 p1 d3: train.global_batch = 2 is not divided by 3 data
// ranks".
std::vector<std::string> left_out_of_space(const RunConfig& config,
                                           const Cluster& cluster,
                                           std::int64_t ranks,
                                           const AllowedChoices& allowed);

// The choice that a resolved config has made, with the layers of each stage; none of a schedule
// that is a table.
std::optional<PlanChoice> choice_of(const RunConfig& config, const Target& target);

}  // namespace tessera
