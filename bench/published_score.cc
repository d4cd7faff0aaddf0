#include "bench/published_score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace tessera {
namespace {

// With the factor that makes it least, which is that of one of the rows: between two of them the
// mean is linear.
double bar_of(std::span<const ScoredRow> rows) {
  double least = std::numeric_limits<double>::infinity();
  for (const ScoredRow& exact : rows) {
    const double factor = exact.target / exact.flop;
    double sum = 0.0;
    for (const ScoredRow& row : rows) {
      sum += std::abs(factor * row.flop / row.target - 1.0);
    }
    least = std::min(least, sum / static_cast<double>(rows.size()));
  }
  return rows.empty() ? 0.0 : least;
}

// Kendall's tau-a over all pairs of rows with the same model.
std::optional<double> tau_of(std::span<const ScoredRow> rows) {
  std::int64_t agree = 0;
  std::int64_t pairs = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (rows[i].model != rows[j].model) {
        continue;
      }
      const double measured = rows[i].target / rows[i].work - rows[j].target / rows[j].work;
      const double predicted = rows[i].predicted / rows[i].work - rows[j].predicted / rows[j].work;
      agree += measured * predicted > 0.0 ? 1 : measured * predicted < 0.0 ? -1 : 0;
      ++pairs;
    }
  }
  return pairs == 0 ? std::nullopt
                    : std::optional(static_cast<double>(agree) / static_cast<double>(pairs));
}

}  // namespace

TableScore score_of(std::span<const ScoredRow> rows) {
  TableScore score = {.rows = rows.size(), .bar = bar_of(rows), .tau = tau_of(rows)};
  const auto count = static_cast<double>(rows.size());
  for (const ScoredRow& row : rows) {
    const double error = std::abs(row.predicted / row.target - 1.0);
    score.mean += error / count;
    score.largest = std::max(score.largest, error);
    score.bias += std::log(row.predicted / row.target) / count;
  }
  return score;
}

double shuffled_error(std::span<const ScoredRow> rows, std::uint64_t shuffles) {
  double sum = 0.0;
  for (std::uint64_t seed = 0; seed < shuffles; ++seed) {
    std::vector<ScoredRow> shuffled(rows.begin(), rows.end());
    std::mt19937_64 random(seed);
    for (std::size_t i = shuffled.size(); i > 1; --i) {
      std::swap(shuffled[i - 1].target, shuffled[random() % i].target);
    }
    sum += score_of(shuffled).mean / static_cast<double>(shuffles);
  }
  return sum;
}

}  // namespace tessera
