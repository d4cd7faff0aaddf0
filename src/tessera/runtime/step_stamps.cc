#include "tessera/runtime/step_stamps.h"

#include <cstddef>

namespace tessera {

void StepStamps::turn_on() {
  std::vector<std::size_t> num_steps(of_streams_.size(), 0);
  for (const IssueStep& step : order_.steps) {
    ++num_steps[step.stream];
  }
  for (std::size_t stream = 0; stream < of_streams_.size(); ++stream) {
    of_streams_[stream].reserve(num_steps[stream]);
  }
  is_on_ = true;
}

void StepStamps::turn_off() {
  for (std::vector<StepStamp>& stamps : of_streams_) {
    stamps = {};
  }
  is_on_ = false;
}

void StepStamps::clear() {
  for (std::vector<StepStamp>& stamps : of_streams_) {
    stamps.clear();
  }
}

}  // namespace tessera
