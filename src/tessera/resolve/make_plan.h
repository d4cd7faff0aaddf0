#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/actions/timeline.h"
#include "tessera/config/run_config.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/target.h"
#include "tessera/resolve/memory_choice.h"

namespace tessera {

// Where what a run may move lies if it is moved; the device: it stays, or another key says where.
struct MayMove {
  Space optimizer = Space::kDevice;
  Space parameters = Space::kDevice;
  Space activations = Space::kDevice;

  bool states() const { return optimizer != Space::kDevice || parameters != Space::kDevice; }

  bool any() const { return states() || activations != Space::kDevice; }
};

// A run file, worked out: all that its programs and its memory follow from.
struct PlannedRun {
  Plan plan;
  Target target;
  std::filesystem::path offload_dir = {};  // of the files that plan.passes says of
  bool saves_in_background = false;        // some checkpoint is written beside the training
  // By how much room there is:
  bool chooses_recompute = false;                  // what the plan recomputes,
  MayMove may_move = {};                           // and what lies elsewhere
  std::optional<MemoryChoice> chosen_before = {};  // then, by an earlier start
  std::vector<ActionCosts> stage_costs = {};       // of a pipeline, by stage (model_costs())
  double hop = 0.0;                                // from one to the next, in seconds; 0: not known
  std::vector<std::string> notes = {};             // about the pipeline, for people

  bool chooses_memory() const { return chooses_recompute || may_move.any(); }
};

// The one place where keys of a resolved config become a plan, for `target` or for the device that
// the run is on. Errors: as resolve_layout() and resolve_pipeline().
PlannedRun plan_run(const RunConfig& config, const ModelDescription& model, const Target& target);
PlannedRun plan_run(const RunConfig& config, const ModelDescription& model);

// What run.device = "cpu" or "cuda" is compiled for.
Target run_target(const RunConfig& config);

}  // namespace tessera
