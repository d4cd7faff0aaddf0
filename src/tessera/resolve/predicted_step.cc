#include "tessera/resolve/predicted_step.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/mesh/cluster.h"
#include "tessera/plan/run_layout.h"
#include "tessera/resolve/simulated_run.h"
#include "tessera/resolve/simulation_report.h"

namespace tessera {
namespace {

// Of all programs together: simulating them takes at most a fifth of a second.
constexpr std::size_t kMostSteps = 200'000;

std::size_t count_steps(const RunPrograms& programs) {
  std::size_t count = 0;
  for (const Programs& own : programs) {
    for (const Call& call : own.step.calls) {
      count += own.step[call.segment].instructions.size();
    }
  }
  return count;
}

double simulated_seconds(const RunConfig& config,
                         const PlannedRun& run,
                         const RunPrograms& programs,
                         const Cluster& cluster) {
  const Mesh& mesh = run.plan.layout.mesh;
  const CollectiveStyle style = config.comm.reduction == Reduction::kNative
                                    ? CollectiveStyle::kNative
                                    : CollectiveStyle::kOwn;
  std::vector<TimedProgram> timed;
  for (const Programs& own : programs) {
    timed.push_back(time_program(own.step, mesh, cluster, style, run.plan.threads));
  }
  std::vector<std::size_t> program_of;
  for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    program_of.push_back(static_cast<std::size_t>(pipeline_place(mesh, rank)));
  }
  const StepTimeline timeline =
      simulate({.mesh = mesh, .cluster = cluster, .programs = timed, .program_of = program_of},
               {.slow = {}, .spread = cluster.spread, .threads = run.plan.threads});
  return to_seconds(timeline.step);
}

}  // namespace

PredictedStep predict_step(const RunConfig& config,
                           const PlannedRun& run,
                           const RunPrograms& programs) {
  const std::string& file = config.cluster.file;
  if (file.empty() || file == "local") {
    return {};
  }
  const Cluster cluster = load_cluster(file);
  if (!cluster.device.curve) {
    return {};
  }
  const auto unknown = [&](const std::string& reason) {
    return PredictedStep{.note = format("no step is predicted: {}", reason)};
  };
  if (const std::string other = other_devices_text(cluster, run.target); !other.empty()) {
    return unknown(other);
  }
  if (const std::size_t steps = count_steps(programs); steps > kMostSteps) {
    return unknown(format("{} instructions would keep the start waiting; tessera simulate says it",
                          format_grouped(static_cast<std::int64_t>(steps))));
  }
  try {
    return {.seconds = simulated_seconds(config, run, programs, cluster),
            .constants = constants_text(cluster)};
  } catch (const Error& error) {
    return unknown(error.what());
  }
}

}  // namespace tessera
