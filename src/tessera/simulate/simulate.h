#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "tessera/mesh/cluster.h"
#include "tessera/mesh/mesh.h"
#include "tessera/simulate/step_timeline.h"
#include "tessera/simulate/ticks.h"
#include "tessera/simulate/timed_program.h"

namespace tessera {

// Ranks, and what each of them does in a step.
struct RankPrograms {
  const Mesh& mesh;
  const Cluster& cluster;
  std::span<const TimedProgram> programs;
  std::span<const std::size_t> program_of;  // by rank, in `programs`
};

inline constexpr double kLeastSlow = 0.01;  // of SimulationOptions::slow
inline constexpr double kMostSlow = 1e6;

struct SimulationOptions {
  // Whether steps that run at a time share devices, links and the host. Without, each runs as if it
  // were alone: the least that this order could take.
  bool contention = true;
  std::map<std::int64_t, double> slow = {};  // by rank, how many times as long its kernels take
  // Standard deviation of the ranks' speeds, over the speed. Those that wait for each other are as
  // slow as the slowest, which of n is expected to be standard_maximum(n) times as much slower.
  double spread = 0.0;
  // From one instruction to the next, of a rank's host. It issues what waits for a transfer when
  // that has ended, and buckets of states in no time, as there are few.
  Ticks issue = 0;
  Ticks issue_leg = 0;       // that it takes longer to issue what talks to others
  std::int64_t threads = 1;  // that compute, of a rank, where ranks share a host's cores
};

// The largest of n numbers with standard normal distribution that is to be expected; 0 for one.
double standard_maximum(std::int64_t n);

// The step of all ranks. Ranks whose groups are alike, class by class, are always equally far, so
// that one of them stands for all.
//
// The order is that of the executor: a stream's steps run one after the other, none is issued
// before stream 0 has done all that stands before it, and each runs after those that it waits for.
// Legs of a group, and both ends of a transfer, begin when all have come to them, and end together.
// With contention, what runs on a class's devices and links at a time shares them max-min fairly.
//
// Errors: kInternal, with ranks and places, where ranks wait for each other for ever, or meet in
// unequal collectives, as verify_ranks(); kInvalidArgument for slow ranks that the mesh lacks, and
// factors below kLeastSlow or above kMostSlow; kInvalidConfig for a step that takes longer than
// kMostTicks.
StepTimeline simulate(const RankPrograms& ranks, const SimulationOptions& options = {});

}  // namespace tessera
