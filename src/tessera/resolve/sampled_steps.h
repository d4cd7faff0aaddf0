#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/resolve/simulated_run.h"

namespace tessera {

// Each rank is simulated by itself: more would take hours.
inline constexpr std::int64_t kMostSampledRanks = 1024;

// Steps of a run whose ranks have drawn speeds.
struct SampledSteps {
  std::vector<double> seconds = {};  // ascending

  // What a share of them take at most, by the nearest rank.
  double quantile(double share) const;
};

// Simulates `count` steps, in each of which a rank's kernels take 1 + s z times as long: s is the
// spread of the cluster, z a standard normal variate of its own, the same in each call. Where a
// simulation without samples takes the expected slowest of n ranks for all, this says how steps
// lie about it. `progress`, if there is one, is told how many are done. Errors: kInvalidConfig for
// a cluster without spread, and more than kMostSampledRanks ranks; those of simulate().
SampledSteps sample_steps(const SimulatedRun& run,
                          const SimulationOptions& options,
                          std::int64_t count,
                          const std::function<void(std::int64_t)>& progress = nullptr);

}  // namespace tessera
