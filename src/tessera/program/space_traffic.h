#pragma once

#include <cstdint>

#include "tessera/program/program.h"

namespace tessera {

// What a step moves between the device's memory and another space, in bytes; with a file in whole
// pages, as it reads and writes them.
struct SpaceTraffic {
  std::int64_t fetched = 0;
  std::int64_t stored = 0;

  friend bool operator==(const SpaceTraffic&, const SpaceTraffic&) = default;
};

SpaceTraffic space_traffic(const Program& program, Space space);

}  // namespace tessera
