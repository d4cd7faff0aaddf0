#include "tessera/resolve/simulated_run.h"

#include <algorithm>
#include <span>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/plan/run_layout.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/verify_ranks.h"

namespace tessera {
namespace {

// Whoever wrote them is to know what is wrong with them.
void require_verified(std::span<const Program> programs, const Mesh& mesh) {
  try {
    std::vector<CollectiveSequence> sequences;
    std::vector<std::size_t> class_of;
    for (const Program& program : programs) {
      verify(program);
      sequences.push_back(collective_calls(program));
    }
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      class_of.push_back(static_cast<std::size_t>(pipeline_place(mesh, rank)));
    }
    verify_ranks(mesh, sequences, class_of);
  } catch (const Error& error) {
    fail(ErrorCode::kInvalidConfig, "no step of these programs: {}", error.what());
  }
}

}  // namespace

Target target_of(const Cluster& cluster) {
  const DeviceSpec& device = cluster.device;
  const bool is_known = device.memory_bytes > 0 || device.units > 0;
  Target target = cluster.host.cores > 0 || !is_known ? cpu_target() : cuda_target();
  if (target.is_device()) {
    target.device = cluster.device;
  }
  return target;
}

std::string other_devices_text(const Cluster& cluster, const Target& target) {
  return target_of(cluster).is_device() == target.is_device()
             ? ""
             : format("{} is of {}, and the run is on {}",
                      cluster.source,
                      target.is_device() ? "CPUs" : "GPUs",
                      target.is_device() ? "GPUs" : "the CPU");
}

SimulatedRun::SimulatedRun(RunConfig config, const Cluster& cluster, const RunChanges& changes)
    : SimulatedRun(std::move(config), target_of(cluster), cluster, changes) {}

SimulatedRun::SimulatedRun(RunConfig config,
                           const Target& target,
                           const Cluster& cluster,
                           const RunChanges& changes)
    : cluster_(cluster),
      facts_(explain(std::move(config), std::optional(target), changes.plan)),
      mesh_(facts_->layout().mesh),
      style_(changes.style.value_or(facts_->config.comm.reduction == Reduction::kNative
                                        ? CollectiveStyle::kNative
                                        : CollectiveStyle::kOwn)) {
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
  require_verified(own_, mesh);
  find_programs();
}

// A rank's share of the host's cores, unless the run says how many.
std::int64_t SimulatedRun::threads() const {
  if (facts_ && facts_->config.origins.places.contains("run.threads")) {
    return facts_->run.plan.threads;
  }
  return std::max<std::int64_t>(1, cluster_.host.cores / mesh_.num_ranks());
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
    timed.push_back(time_program(program, mesh_, cluster, style_, threads()));
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
  options.threads = threads();
  options.spread = cluster_.spread;
  return options;
}

StepTimeline SimulatedRun::simulate(SimulationOptions options) const {
  return tessera::simulate(ranks(), with_defaults(std::move(options)));
}

StepTimeline SimulatedRun::simulate_drawn(SimulationOptions options) const {
  options.threads = threads();
  options.spread = 0.0;
  return tessera::simulate(ranks(), options);
}

double SimulatedRun::step_seconds(const Cluster& cluster, const SimulationOptions& options) const {
  const std::vector<TimedProgram> programs = time_programs(cluster);
  return to_seconds(tessera::simulate(ranks(programs, cluster), with_defaults(options)).step);
}

}  // namespace tessera
