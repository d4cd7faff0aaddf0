#pragma once

#include <cstddef>
#include <deque>
#include <numeric>

namespace tessera {

// The mean of the last `window` numbers.
class MovingMean {
 public:
  explicit MovingMean(std::size_t window) : window_(window) {}

  // Adds a number and returns the mean.
  double add(double value) {
    values_.push_back(value);
    if (values_.size() > window_) {
      values_.pop_front();
    }
    return std::accumulate(values_.begin(), values_.end(), 0.0) /
           static_cast<double>(values_.size());
  }

 private:
  std::size_t window_;
  std::deque<double> values_;
};

}  // namespace tessera
