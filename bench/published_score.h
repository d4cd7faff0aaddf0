#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera {

// A row whose step was simulated.
struct ScoredRow {
  std::string model;
  double target = 0.0;     // seconds of a step
  double predicted = 0.0;  // likewise
  double flop = 0.0;       // of a GPU in a step, with what is computed again
  double work = 0.0;       // tokens of a GPU in a step
  bool has_guess = false;
};

// Shares, not percent.
struct TableScore {
  std::size_t rows = 0;
  double mean = 0.0;     // of |predicted / target - 1|
  double largest = 0.0;  // likewise
  double bias = 0.0;     // mean of log(predicted / target)
  double bar = 0.0;      // the mean of what one constant times FLOP would have, the best there is
  std::optional<double> tau;  // of pairs of one model, by seconds a token; none without pairs
};

TableScore score_of(std::span<const ScoredRow> rows);

// The mean error where each row has the target of another one: of so many shuffles, the mean.
double shuffled_error(std::span<const ScoredRow> rows, std::uint64_t shuffles);

}  // namespace tessera
