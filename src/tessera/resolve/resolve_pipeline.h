#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/actions/timeline.h"
#include "tessera/config/run_config.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/target.h"

namespace tessera {

struct ResolvedPipeline {
  PipelinePlan plan;
  std::vector<ActionCosts> stage_costs;  // by stage: model_costs()
  double hop = 0.0;                      // ticks of these, from stage to stage; 0: not known
  std::vector<std::string> notes;        // for people
};

// The schedule and the stages that [pipeline] asks for, of a plan that has all else; none with one
// pipeline rank. Errors: kInvalidConfig with the key and what would do, or the table's file with
// row and column.
std::optional<ResolvedPipeline> resolve_pipeline(const RunConfig& config,
                                                 const Plan& plan,
                                                 const Target& target);

}  // namespace tessera
