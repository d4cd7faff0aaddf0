#include "tessera/train/predicted_pace.h"

#include <cmath>
#include <iterator>

#include "tessera/base/format.h"
#include "tessera/base/median.h"

namespace tessera {

std::optional<PredictedPace::Word> PredictedPace::add(double seconds) {
  if (!predicted_ || steps_.size() == kSteps) {
    return std::nullopt;
  }
  if (is_first_) {
    is_first_ = false;
    return std::nullopt;
  }
  steps_.push_back(seconds);
  if (steps_.size() < kSteps) {
    return std::nullopt;
  }
  const double middle = median(steps_);
  Word word = {.text = format("step {:.4g} s (predicted {:.4g} s)", middle, *predicted_)};
  const double off = middle / *predicted_ - 1.0;
  if (std::abs(off) > kMostOff) {
    word.is_warning = true;
    word.text += format(
        ": {:.0f} % {}, by the median of {} steps. {}; tessera compare says where the time of a "
        "step goes that --trace-step=N has recorded",
        100.0 * std::abs(off),
        off > 0.0 ? "longer" : "shorter",
        kSteps,
        off > 0.0 ? "Others may use this machine, it may be throttled, or the figures of "
                    "cluster.file are not its own"
                  : "The figures of cluster.file are not this machine's");
  }
  return word;
}

}  // namespace tessera
