#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/mesh/cluster.h"
#include "tessera/planner/plan_choice.h"

namespace tessera {

// What plans may do that changes numbers, where the run file does not.
struct AllowedFormats {
  bool int8 = false;    // parameters and gradients on the wire
  bool int4 = false;    // gradients on the wire
  bool float8 = false;  // products of the layers
};

// Of "int8,float8". Errors: kInvalidConfig quoting the text.
AllowedFormats parse_allowed(std::string_view text);

// `config`, as file and command line have it, with all that does not depend on the plan filled in,
// for the devices of the cluster. Errors: kInvalidConfig.
RunConfig filled_in(const RunConfig& config, const Cluster& cluster, std::int64_t ranks);

// All plans of a run on so many ranks of a cluster, in an order that is always the same: mesh,
// microbatch, recompute, schedule and chunks, placement of states. `config` is filled_in().
// A plan is left out where the rules of the run file refuse it.
std::vector<PlanChoice> plan_space(const RunConfig& config,
                                   const Cluster& cluster,
                                   std::int64_t ranks,
                                   const AllowedFormats& allowed);

// The choice that a resolved config has made.
PlanChoice choice_of(const RunConfig& config);

}  // namespace tessera
