#include "tessera/resolve/simulated_run.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/plan/run_layout.h"

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
      mesh_(facts_->layout().mesh),
      style_(facts_->config.comm.reduction == Reduction::kNative ? CollectiveStyle::kNative
                                                                 : CollectiveStyle::kOwn) {
  find_programs();
}

SimulatedRun::SimulatedRun(std::vector<Program> programs,
                           const Mesh& mesh,
                           const Cluster& cluster,
                           CollectiveStyle style)
    : cluster_(cluster), own_(std::move(programs)), mesh_(mesh), style_(style) {
  TESSERA_REQUIRE(std::ssize(own_) == num_pipeline_ranks(mesh),
                  ErrorCode::kInvalidConfig,
                  "found {} programs, expected one for each of {} pipeline ranks",
                  own_.size(),
                  num_pipeline_ranks(mesh));
  find_programs();
}

void SimulatedRun::find_programs() {
  programs_ = time_programs(cluster_);
  for (std::int64_t rank = 0; rank < mesh_.num_ranks(); ++rank) {
    program_of_.push_back(static_cast<std::size_t>(pipeline_place(mesh_, rank)));
  }
}

std::vector<TimedProgram> SimulatedRun::time_programs(const Cluster& cluster) const {
  std::vector<TimedProgram> timed;
  const auto add = [&](const Program& program) {
    timed.push_back(time_program(program, mesh_, cluster, style_));
  };
  std::ranges::for_each(own_, add);
  if (facts_) {
    for (const Programs& programs : facts_->programs) {
      add(programs.step);
    }
  }
  return timed;
}

RankPrograms SimulatedRun::ranks(const std::vector<TimedProgram>& programs,
                                 const Cluster& cluster) const {
  return {.mesh = mesh_, .cluster = cluster, .programs = programs, .program_of = program_of_};
}

SimulationOptions SimulatedRun::with_defaults(SimulationOptions options) const {
  options.threads = facts_ ? facts_->run.plan.threads : 1;
  options.spread = cluster_.spread;
  return options;
}

StepTimeline SimulatedRun::simulate(SimulationOptions options) const {
  return tessera::simulate(ranks(), with_defaults(std::move(options)));
}

double SimulatedRun::step_seconds(const Cluster& cluster) const {
  const std::vector<TimedProgram> programs = time_programs(cluster);
  return to_seconds(tessera::simulate(ranks(programs, cluster), with_defaults({})).step);
}

}  // namespace tessera
