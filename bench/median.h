#pragma once

#include <algorithm>
#include <vector>

namespace tessera {

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0.0 : values[values.size() / 2];
}

}  // namespace tessera
