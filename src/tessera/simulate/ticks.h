#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "tessera/base/error.h"

namespace tessera {

// Time in picoseconds: sums are exact, whatever their order. Room for 106 days.
using Ticks = std::int64_t;

inline constexpr double kTicksPerSecond = 1e12;

// Errors: kInvalidConfig where there is no room for it.
inline Ticks to_ticks(double seconds) {
  const double ticks = std::round(seconds * kTicksPerSecond);
  TESSERA_REQUIRE(
      ticks >= 0.0 && ticks < static_cast<double>(std::numeric_limits<Ticks>::max()) / 2,
      ErrorCode::kInvalidConfig,
      "{} s cannot be simulated: expected 0 to 4,600,000 s",
      seconds);
  return static_cast<Ticks>(ticks);
}

inline double to_seconds(Ticks ticks) {
  return static_cast<double>(ticks) / kTicksPerSecond;
}

}  // namespace tessera
