#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/mesh/cluster.h"
#include "tessera/resolve/explanation.h"
#include "tessera/simulate/simulate.h"

namespace tessera {

// A run on a cluster that need not be here, with what its ranks' instructions take there.
class SimulatedRun {
 public:
  // Compiles the step of `config` for the devices of `cluster`, whose file config.cluster.file
  // names. Errors: those of explain() and time_program().
  SimulatedRun(RunConfig config, const Cluster& cluster);

  const Explanation& facts() const { return facts_; }

  const Cluster& cluster() const { return cluster_; }

  CollectiveStyle style() const { return style_; }

  // Of the cluster as it is.
  RankPrograms ranks() const;

  // When each rank does what. Without `options.slow` the ranks of a pipeline rank are equal.
  StepTimeline simulate(SimulationOptions options = {}) const;

  // The seconds of the step on another cluster of the same levels and sizes.
  double step_seconds(const Cluster& cluster) const;

 private:
  std::vector<TimedProgram> time_programs(const Cluster& cluster) const;

  Cluster cluster_;
  Explanation facts_;
  CollectiveStyle style_ = CollectiveStyle::kOwn;
  std::vector<TimedProgram> programs_;   // by pipeline rank
  std::vector<std::size_t> program_of_;  // by rank
};

}  // namespace tessera
