#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/actions/run_order.h"
#include "tessera/config/run_config.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/placement.h"
#include "tessera/plan/compile.h"
#include "tessera/planner/by_key.h"
#include "tessera/planner/live_bytes.h"
#include "tessera/planner/pipeline_clock.h"
#include "tessera/planner/plan_choice.h"
#include "tessera/planner/search.h"
#include "tessera/planner/step_sums.h"
#include "tessera/resolve/make_plan.h"

namespace tessera {

// What a schedule is, whatever its actions cost.
struct ScheduleFacts {
  std::vector<OrderedAction> order;
  std::vector<std::int64_t> rank_of_stage;
  bool splits_backward = false;
};

// What the plans of a run on a cluster take: bounds of their steps and of their memory, and the
// figures of those that are compiled. Several threads may ask at once.
class PlannedRuns {
 public:
  // `config` as its file and the command line have it, for so many ranks. Borrows the cluster for
  // its life.
  PlannedRuns(RunConfig config, const Cluster& cluster, std::int64_t ranks);

  // By which plans are cut, from the cheapest on; see docs/floors/planner.md:
  // 0  work of the layers and bytes of the states, from a model of few layers on one data rank
  // 1  with the pipeline's schedule
  // 2  with collectives of states, from a model of few layers with this placement
  static constexpr int kNumBounds = 3;

  PlanBound bound(const PlanChoice& choice, int number) const;

  // Compiles the whole step, and simulates it where it fits. Its memory is what `tessera explain`
  // says of the run.
  PlanOutcome evaluate(const PlanChoice& choice) const;

  // The same of the run as its file has it, with all its keys. Errors: kInvalidConfig,
  // kUnsupported.
  PlanOutcome evaluate_own(std::int64_t ranks) const;

  // The run file with the choice.
  RunConfig config(const PlanChoice& choice) const { return with_choice(config_, choice); }

 private:
  // What a model of few layers without a pipeline is compiled with.
  enum class ProbeOf : std::uint8_t {
    kTotals,  // one data rank and one microbatch, no work of it apart
    kWork,    // likewise, with weight gradients apart where the plan's are
    kSums,    // likewise, with gradients that are added up where the plan's are
    kStates,  // the plan's data ranks and placement
  };

  struct Probe {
    std::int64_t microbatches = 1;  // of its step
    std::int64_t data = 1;
    bool is_refused = false;
    StepSums sums = {};   // of all layers, without a pipeline
    StepSums layer = {};  // what one more layer adds
    double alive = 0.0;   // bytes, of as many layers as were measured
    std::vector<StepParts> parts = {};
    AheadSeconds ahead = {};
    StepEnds ends = {};
    LayerBytes bytes = {};
    double boundary = 0.0;  // bytes that go from one layer to the next

    // Of a microbatch, where there may be fewer than three.
    const StepParts& part(std::size_t microbatch) const {
      return parts[std::min(microbatch, parts.size() - 1)];
    }
  };

  // Of a pipeline's stages, of which the last may recompute less than the others.
  struct StageProbes {
    std::shared_ptr<const Probe> others;
    std::shared_ptr<const Probe> last;

    bool is_refused() const { return others->is_refused || last->is_refused; }

    const Probe& of(bool is_last) const { return is_last ? *last : *others; }
  };

  RunConfig resolved(const PlanChoice& choice) const;
  PlannedRun planned(const RunConfig& config) const;
  double spread(std::int64_t ranks) const;
  std::int64_t threads(const RunConfig& config, const PlannedRun& run, std::int64_t ranks) const;
  std::vector<TimedProgram> timed(const RunConfig& config,
                                  const PlannedRun& run,
                                  const RunPrograms& programs,
                                  std::int64_t ranks,
                                  const Cluster& cluster) const;
  std::shared_ptr<const Probe> probe(const PlanChoice& choice, ProbeOf of) const;
  StageProbes stage_probes(const PlanChoice& choice, ProbeOf of) const;
  Probe make_probe(const PlanChoice& choice,
                   bool splits_backward,
                   bool codes_once,
                   std::int64_t ranks) const;
  ProbeOf probe_of(const PlanChoice& choice, int number) const;
  std::shared_ptr<const ScheduleFacts> schedule(const PlanChoice& choice) const;
  PlanBound bound_or_throw(const PlanChoice& choice, int number) const;
  PlanOutcome evaluate_config(const RunConfig& config) const;
  PlanOutcome simulated(const RunConfig& config) const;
  double rank_seconds(const StreamSeconds& step, double idle) const;
  StreamSeconds all_of(const PlanChoice& choice, const Probe& probe, const StepSums& sums) const;
  double single_seconds(const PlanChoice& choice, const Probe& probe) const;
  double pipeline_seconds(const PlanChoice& choice,
                          const StageProbes& probes,
                          bool with_order) const;
  double rank_bound(const PlanChoice& choice,
                    const StageProbes& probes,
                    const std::vector<StageSeconds>& stages) const;
  double clock_bound(const PlanChoice& choice,
                     const Probe& probe,
                     const std::vector<StageSeconds>& stages) const;
  std::vector<StageSeconds> stage_seconds(const PlanChoice& choice,
                                          const StageProbes& probes) const;
  double hop_seconds(const PlanChoice& choice, const Probe& probe) const;
  double applied_seconds(const PlanChoice& choice, const Probe& probe) const;
  std::int64_t most_memory(const PlanChoice& choice) const;
  std::vector<double> layers_of_ranks(const PlanChoice& choice) const;
  std::int64_t least_channels(const PlanChoice& choice) const;
  Mesh mesh_of(const PlanChoice& choice) const;
  Placement placement_of(const PlanChoice& choice) const;
  double update_share(const PlanChoice& choice, const Probe& probe) const;
  double state_bytes_of(const PlanChoice& choice, double parameters, double trained) const;
  double single_memory(const PlanChoice& choice, const Probe& probe) const;
  double pipeline_memory(const PlanChoice& choice,
                         const StageProbes& probes,
                         bool with_order) const;
  std::vector<StageBytes> stage_bytes(const PlanChoice& choice, const StageProbes& probes) const;

  RunConfig config_;
  const Cluster& cluster_;
  Cluster
      cached_;  // with all that is touched again in its host's cache: no step of it takes longer
  Target target_;
  std::int64_t num_layers_ = 0;
  std::int64_t few_layers_ = 0;  // of the smaller of the two models that are measured
  std::int64_t period_ = 1;      // layers after which kinds of layers repeat
  std::int64_t limit_ = 0;       // bytes that no rank may exceed; 0: not known
  double comm_share_ = 0.0;      // of a device, that a library's collectives take
  mutable ByKey<Probe> probes_;
  mutable ByKey<ScheduleFacts> schedules_;
};

}  // namespace tessera
