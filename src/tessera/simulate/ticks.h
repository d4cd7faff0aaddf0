#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "tessera/base/error.h"

namespace tessera {

// Time in picoseconds: sums are exact, whatever their order. Room for 26 days.
using Ticks = std::int64_t;

inline constexpr double kTicksPerSecond = 1e12;

// More are refused, so that sums of two have room.
inline constexpr Ticks kMostTicks = std::numeric_limits<Ticks>::max() / 4;

// Errors: kInvalidConfig where there is no room for them.
inline Ticks checked_ticks(double ticks) {
  TESSERA_REQUIRE(ticks >= 0.0 && ticks <= static_cast<double>(kMostTicks),
                  ErrorCode::kInvalidConfig,
                  "{:.4g} s cannot be simulated: expected 0 to {:.4g} s",
                  ticks / kTicksPerSecond,
                  static_cast<double>(kMostTicks) / kTicksPerSecond);
  return static_cast<Ticks>(ticks);
}

// Errors: kInvalidConfig where there is no room for it.
inline Ticks to_ticks(double seconds) {
  return checked_ticks(std::round(seconds * kTicksPerSecond));
}

inline double to_seconds(Ticks ticks) {
  return static_cast<double>(ticks) / kTicksPerSecond;
}

}  // namespace tessera
