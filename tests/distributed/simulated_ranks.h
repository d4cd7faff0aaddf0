#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/cost/collective_time.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/mesh.h"
#include "tessera/program/program.h"
#include "tessera/simulate/simulate.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {

// The cluster whose devices the ranks of a mesh are. All of its figures are known, and no level is
// like another.
Cluster cluster_of(const Mesh& mesh);

// The programs of a run's ranks without workspaces: by pipeline rank, or the one of all.
std::vector<Program> plain_programs(const RankRun& run);

// By rank, which of so many programs it runs.
std::vector<std::size_t> program_of_ranks(const Mesh& mesh, std::size_t num_programs);

// Ranks that are simulated: what they run, timed.
class SimulatedRanks {
 public:
  explicit SimulatedRanks(const RankRun& run, CollectiveStyle style = CollectiveStyle::kOwn)
      : SimulatedRanks(run.mesh, cluster_of(run.mesh), plain_programs(run), style) {}

  SimulatedRanks(const Mesh& mesh,
                 Cluster cluster,
                 std::vector<Program> programs,
                 CollectiveStyle style = CollectiveStyle::kOwn);

  ~SimulatedRanks() = default;
  SimulatedRanks(const SimulatedRanks&) = delete;
  SimulatedRanks& operator=(const SimulatedRanks&) = delete;

  // What the instruction at a place of a program takes; `own` is what it took.
  using TakePieces = std::function<std::vector<Piece>(
      std::size_t program, const Segment& segment, std::size_t index, std::span<const Piece> own)>;

  void change_pieces(const TakePieces& take);

  RankPrograms ranks() const {
    return {.mesh = mesh_, .cluster = cluster_, .programs = timed_, .program_of = program_of_};
  }

  StepTimeline simulate(const SimulationOptions& options = {}) const {
    return tessera::simulate(ranks(), options);
  }

  // The step with every rank a program of its own.
  StepTimeline simulate_apart(const SimulationOptions& options = {}) const;

  const std::vector<Program>& programs() const { return programs_; }

  std::vector<TimedProgram>& timed() { return timed_; }

 private:
  Mesh mesh_;
  Cluster cluster_;
  std::vector<Program> programs_;
  std::vector<TimedProgram> timed_;      // of these
  std::vector<std::size_t> program_of_;  // by rank
};

}  // namespace tessera
