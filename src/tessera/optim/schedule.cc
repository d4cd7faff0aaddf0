#include "tessera/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// From 1 at x = 0 to 0 at x = 1.
double shape(Decay decay, double x) {
  switch (decay) {
    case Decay::kLinear:
      return 1 - x;
    case Decay::kCosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * x));
    case Decay::kSqrt:
      return 1 - std::sqrt(x);
  }
  return 1;
}

}  // namespace

std::string_view to_string(Decay decay) {
  switch (decay) {
    case Decay::kLinear:
      return "linear";
    case Decay::kCosine:
      return "cosine";
    case Decay::kSqrt:
      return "sqrt";
  }
  return "?";
}

std::int64_t num_decay_steps(const Schedule& schedule, std::int64_t num_steps) {
  return std::llround(schedule.decay_ratio * static_cast<double>(num_steps));
}

double learning_rate(const Schedule& schedule,
                     double peak,
                     std::int64_t num_steps,
                     std::int64_t step) {
  TESSERA_REQUIRE(step >= 1, ErrorCode::kInvalidArgument, "step {}: steps count from 1", step);
  const std::int64_t decay_steps = num_decay_steps(schedule, num_steps);
  const std::int64_t first_decay_step = num_steps - decay_steps + 1;
  if (decay_steps > 0 && step >= first_decay_step) {
    const auto decayed = static_cast<double>(step - first_decay_step);
    const double x = std::min(1.0, decayed / static_cast<double>(decay_steps));
    return peak * (schedule.floor + (1 - schedule.floor) * shape(schedule.decay, x));
  }
  if (step < schedule.warmup) {
    return peak * (static_cast<double>(step) / static_cast<double>(schedule.warmup));
  }
  return peak;
}

}  // namespace tessera
