#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tessera {

// Of an even number of values the upper of the two in the middle; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) {
    return 0.0;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// How far the middle half of the values, of which there are some, lies apart, over the median.
inline double middle_spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t quarter = values.size() / 4;
  return (values[values.size() - 1 - quarter] - values[quarter]) / values[values.size() / 2];
}

}  // namespace tessera
