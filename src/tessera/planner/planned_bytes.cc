// Bounds of memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/mesh/placement.h"
#include "tessera/planner/pipeline_clock.h"
#include "tessera/planner/planned_runs.h"

namespace tessera {

// Without padding, and without gradients where a step has one microbatch, which
// may not keep them.
double PlannedRuns::state_bytes_of(const PlanChoice& choice,
                                   double parameters,
                                   double trained) const {
  const Placement placement = placement_of(choice);
  const auto bytes = [&](double elements) {
    return state_bytes(placement,
                       {.elements = static_cast<std::int64_t>(elements),
                        .ranks = choice.state_ranks(),
                        .compute = config_.train.dtype,
                        .moments = config_.optimizer.moments});
  };
  const StateBytes all = bytes(parameters);
  const StateBytes own = bytes(trained);
  const bool adds_up = choice.num_microbatches > 1 && config_.optimizer.gradients == DType::kF32;
  return static_cast<double>(all.param + all.secondary + own.optimizer + (adds_up ? own.grad : 0));
}

// Of layers that ranks gather or reduce, a few are alive at once: another layer than those
// that were measured may add nothing to them.
double PlannedRuns::single_memory(const PlanChoice& choice, const Probe& probe) const {
  const StepSums& sums = probe.sums;
  const double alive = choice.state_ranks() > 1 ? probe.alive : sums.alive;
  return std::max(state_bytes_of(choice, sums.parameters, sums.trained) + sums.activations,
                  probe.data == choice.data ? sums.persistent + alive : 0.0);
}

std::vector<StageBytes> PlannedRuns::stage_bytes(const PlanChoice& choice,
                                                 const StageProbes& probes) const {
  const auto slices = static_cast<double>(config_.pipeline.slices);
  std::vector<StageBytes> stages;
  for (std::size_t stage = 0; stage < choice.layers.size(); ++stage) {
    const Probe& probe = probes.of(stage + 1 == choice.layers.size());
    // Gradients of one microbatch lie elsewhere than those that are added up.
    const bool has_peaks = config_.pipeline.slices == 1 && probe.microbatches > 1;
    const LayerBytes& layer = probe.bytes;
    const auto layers = static_cast<double>(choice.layers[stage]);
    StageBytes bytes = {.kept = layers * layer.kept / slices, .left = layers * layer.left / slices};
    if (has_peaks && layers > 0.0) {
      bytes.in_forward = (layers - 1.0) * layer.kept + layer.in_forward;
      bytes.in_backward = layer.in_backward;
    }
    if (has_peaks && stage + 1 == choice.layers.size()) {
      bytes.in_forward = std::max(bytes.in_forward, bytes.kept + layer.head_forward);
      bytes.in_backward = std::max(bytes.in_backward, layer.head_backward);
    }
    stages.push_back(bytes);
  }
  return stages;
}

// A rank keeps what its layers leave for backward of every microbatch in
// flight.
double PlannedRuns::pipeline_memory(const PlanChoice& choice,
                                    const StageProbes& probes,
                                    bool with_order) const {
  const std::shared_ptr<const ScheduleFacts> facts = schedule(choice);
  const std::vector<StageBytes> stages = stage_bytes(choice, probes);
  const Probe& probe = *probes.others;  // states are alike
  std::vector<double> held(static_cast<std::size_t>(choice.pipeline), 0.0);
  if (with_order) {
    held = pipeline_bytes(facts->order, stages);
  } else {
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      double& most = held[static_cast<std::size_t>(facts->rank_of_stage[stage])];
      most = std::max({most, stages[stage].kept, stages[stage].in_forward});
    }
  }
  const std::vector<double> layers = layers_of_ranks(choice);
  const auto rest = [&](double StepSums::* elements) {
    return std::max(
        0.0, probe.sums.*elements - static_cast<double>(num_layers_) * probe.layer.*elements);
  };
  const auto first = static_cast<std::size_t>(facts->rank_of_stage.front());
  const auto last = static_cast<std::size_t>(facts->rank_of_stage.back());
  double most = 0.0;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    const auto elements = [&](double StepSums::* of) {
      const double before = std::min(probe.sums.looked_up, rest(of));
      return layers[rank] * probe.layer.*of + (rank == first ? before : 0.0) +
             (rank == last ? rest(of) - before : 0.0);
    };
    most = std::max(
        most,
        state_bytes_of(choice, elements(&StepSums::parameters), elements(&StepSums::trained)) +
            held[rank]);
  }
  return most;
}

}  // namespace tessera
