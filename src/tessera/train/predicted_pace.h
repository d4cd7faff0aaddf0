#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// Holds the steps of a session to the seconds that one was predicted to take.
class PredictedPace {
 public:
  // Steps that count, after the first, which touches all memory for the first time.
  static constexpr std::size_t kSteps = 20;

  // More than this off is too much.
  static constexpr double kMostOff = 0.2;

  struct Word {
    std::string text;
    bool is_warning = false;
  };

  // Empty: nothing was predicted, and nothing is said.
  explicit PredictedPace(std::optional<double> predicted) : predicted_(predicted) {}

  // Adds the seconds of the next step. Once, after the last that counts, says what their median is
  // beside the prediction.
  std::optional<Word> add(double seconds);

 private:
  std::optional<double> predicted_;
  bool is_first_ = true;
  std::vector<double> steps_;
};

}  // namespace tessera
