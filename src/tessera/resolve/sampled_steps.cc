#include "tessera/resolve/sampled_steps.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

// Of a speed that a draw makes senseless.
constexpr double kLeastFactor = 0.1;

}  // namespace

double SampledSteps::quantile(double share) const {
  const double rank = std::ceil(share * static_cast<double>(seconds.size()));
  return seconds[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

SampledSteps sample_steps(const SimulatedRun& run,
                          const SimulationOptions& options,
                          std::int64_t count,
                          const std::function<void(std::int64_t)>& progress) {
  const double spread = run.cluster().spread;
  const std::int64_t ranks = run.mesh().num_ranks();
  TESSERA_REQUIRE(spread > 0.0,
                  ErrorCode::kInvalidConfig,
                  "{}: noise.spread: found 0, expected how far the speeds of devices lie apart, "
                  "without which all samples are alike",
                  run.cluster().source);
  TESSERA_REQUIRE(ranks <= kMostSampledRanks,
                  ErrorCode::kInvalidConfig,
                  "samples of {} ranks: expected at most {}, since each is simulated by itself",
                  format_grouped(ranks),
                  format_grouped(kMostSampledRanks));
  SampledSteps steps;
  std::vector<float> draws(static_cast<std::size_t>(ranks));
  for (std::int64_t sample = 0; sample < count; ++sample) {
    fill_normal(random_key(0, format("speeds of sample {}", sample)), 0, {}, draws);
    SimulationOptions drawn = options;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const double factor = 1.0 + spread * draws[static_cast<std::size_t>(rank)];
      drawn.slow.try_emplace(rank, 1.0).first->second *= std::max(kLeastFactor, factor);
    }
    steps.seconds.push_back(to_seconds(run.simulate_drawn(drawn).step));
    if (progress) {
      progress(sample + 1);
    }
  }
  std::ranges::sort(steps.seconds);
  return steps;
}

}  // namespace tessera
