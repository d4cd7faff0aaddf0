#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/mesh/cluster.h"
#include "tessera/plan/target.h"
#include "tessera/resolve/explanation.h"
#include "tessera/simulate/simulate.h"

namespace tessera {

// What runs on the devices of a cluster: one that says how many cores its ranks share is of CPUs,
// as one that knows nothing of its devices may be.
Target target_of(const Cluster& cluster);

// What of a run no key says: how others run it.
struct RunChanges {
  std::optional<CollectiveStyle> style = {};  // of its collectives; none: as comm.reduction says
  std::function<void(Plan&)> plan = nullptr;  // what else of its plan is different
};

// Why figures of `cluster` say nothing of programs for `target`: "h100.toml is of GPUs, and the run
// is on the CPU"; "" where they do.
std::string other_devices_text(const Cluster& cluster, const Target& target);

// The ranks of a run on a cluster that need not be here, with what their instructions take there.
class SimulatedRun {
 public:
  ~SimulatedRun() = default;
  SimulatedRun(const SimulatedRun&) = delete;  // programs are borrowed
  SimulatedRun& operator=(const SimulatedRun&) = delete;

  // Compiles the step of `config` for the devices of `cluster`, whose file config.cluster.file
  // names. Errors: those of explain() and time_program().
  SimulatedRun(RunConfig config, const Cluster& cluster, const RunChanges& changes = {});

  // Compiles it for `target`, with the layout that the config says itself; takes figures alone from
  // `cluster`, which has the levels of that layout (with_figures()). Errors: as above.
  SimulatedRun(RunConfig config,
               const Target& target,
               const Cluster& cluster,
               const RunChanges& changes = {});

  // Programs alone, one for each pipeline rank of `mesh`, whatever they are of. Errors: those of
  // time_program(); kInvalidConfig for another number of programs, and for programs that verify()
  // or verify_ranks() refuses.
  SimulatedRun(std::vector<Program> programs,
               const Mesh& mesh,
               const Cluster& cluster,
               CollectiveStyle style);

  // Null of programs alone.
  const Explanation* facts() const { return facts_ ? &*facts_ : nullptr; }

  const Cluster& cluster() const { return cluster_; }

  const Mesh& mesh() const { return mesh_; }

  RankPrograms ranks() const { return ranks(programs_, cluster_); }

  // When each rank does what, with the threads of the run and the spread of the cluster in place of
  // the options'.
  StepTimeline simulate(SimulationOptions options = {}) const;

  // The same of ranks that are as fast as options.slow alone says, without the cluster's spread.
  StepTimeline simulate_drawn(SimulationOptions options) const;

  // The seconds of the step on another cluster of the same levels and sizes.
  double step_seconds(const Cluster& cluster, const SimulationOptions& options) const;

 private:
  RankPrograms ranks(const std::vector<TimedProgram>& programs, const Cluster& cluster) const;
  SimulationOptions with_defaults(SimulationOptions options) const;
  std::vector<TimedProgram> time_programs(const Cluster& cluster) const;
  std::int64_t threads() const;
  void find_programs();

  Cluster cluster_;
  std::optional<Explanation> facts_;
  std::vector<Program> own_;  // without facts
  Mesh mesh_;
  CollectiveStyle style_ = CollectiveStyle::kOwn;
  std::vector<TimedProgram> programs_;   // by pipeline rank
  std::vector<std::size_t> program_of_;  // by rank
};

}  // namespace tessera
