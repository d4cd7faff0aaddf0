#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class Decay { kLinear, kCosine, kSqrt };

std::string_view to_string(Decay decay);

// The learning rate over a run, as shares of its peak: warmup, a stable part, decay.
struct Schedule {
  std::int64_t warmup = 10;  // steps
  double decay_ratio = 0.8;  // of all steps
  Decay decay = Decay::kLinear;
  double floor = 0.0;  // of the peak
  bool operator==(const Schedule&) const = default;
};

// Steps of the decay: round(decay_ratio * num_steps).
std::int64_t num_decay_steps(const Schedule& schedule, std::int64_t num_steps);

// Learning rate of step n = `step`, counted from 1, of a run of S = `num_steps`, with W = warmup
// and D = num_decay_steps():
//   n <= S - D   peak * min(1, n / W)
//   else         peak * (floor + (1 - floor) * shape(x)), x = min(1, (n - (S - D) - 1) / D)
// with shape(x) = 1 - x (linear), (1 + cos(pi x)) / 2 (cosine) or 1 - sqrt(x) (sqrt). The decay
// starts from the peak, and step S + 1 would be the first at the floor.
// Errors: kInvalidArgument when step < 1.
// Source: 1 - sqrt(x) from Haegele et al. 2024, arXiv:2405.18392, section 3
double learning_rate(const Schedule& schedule,
                     double peak,
                     std::int64_t num_steps,
                     std::int64_t step);

}  // namespace tessera
