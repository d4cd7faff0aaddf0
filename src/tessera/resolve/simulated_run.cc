#include "tessera/resolve/simulated_run.h"

#include <utility>

namespace tessera {
namespace {

// What runs on the devices of a cluster: one that says how many cores its ranks share is of CPUs,
// as one that knows nothing of its devices may be.
Target target_of(const Cluster& cluster) {
  Target target =
      cluster.host.cores > 0 || cluster.device.memory_bytes == 0 ? cpu_target() : cuda_target();
  if (target.is_device()) {
    target.device = cluster.device;
  }
  return target;
}

}  // namespace

SimulatedRun::SimulatedRun(RunConfig config, const Cluster& cluster)
    : cluster_(cluster),
      facts_(explain(std::move(config), std::optional(target_of(cluster)))),
      style_(facts_.config.comm.reduction == Reduction::kNative ? CollectiveStyle::kNative
                                                                : CollectiveStyle::kOwn),
      programs_(time_programs(cluster)) {
  for (std::int64_t rank = 0; rank < facts_.num_ranks(); ++rank) {
    program_of_.push_back(facts_.programs.place_of(rank));
  }
}

std::vector<TimedProgram> SimulatedRun::time_programs(const Cluster& cluster) const {
  std::vector<TimedProgram> programs;
  for (const Programs& own : facts_.programs) {
    programs.push_back(time_program(own.step, facts_.layout().mesh, cluster, style_));
  }
  return programs;
}

RankPrograms SimulatedRun::ranks() const {
  return {.mesh = facts_.layout().mesh,
          .cluster = cluster_,
          .programs = programs_,
          .program_of = program_of_};
}

StepTimeline SimulatedRun::simulate(SimulationOptions options) const {
  options.threads = facts_.run.plan.threads;
  return tessera::simulate(ranks(), options);
}

double SimulatedRun::step_seconds(const Cluster& cluster) const {
  const std::vector<TimedProgram> programs = time_programs(cluster);
  const RankPrograms ranks = {.mesh = facts_.layout().mesh,
                              .cluster = cluster,
                              .programs = programs,
                              .program_of = program_of_};
  return to_seconds(
      tessera::simulate(ranks, {.slow = {}, .threads = facts_.run.plan.threads}).step);
}

}  // namespace tessera
