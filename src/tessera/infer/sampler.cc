#include "tessera/infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// Tokens from the likeliest on, put in order as far as somebody asks: that is not far, mostly.
class Ranking {
 public:
  Ranking(std::span<const float> logits, double temperature)
      : logits_(logits),
        highest_(std::ranges::max(logits)),
        temperature_(temperature),
        order_(logits.size()) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  std::size_t size() const { return order_.size(); }

  std::int32_t token(std::size_t rank) {
    if (rank >= sorted_) {
      const std::size_t end = std::min(std::max(rank + 1, 4 * sorted_ + 64), order_.size());
      const auto at = [&](std::size_t i) {
        return order_.begin() + static_cast<std::ptrdiff_t>(i);
      };
      std::partial_sort(at(sorted_), at(end), order_.end(), [&](std::int32_t a, std::int32_t b) {
        return logit(a) > logit(b) || (logit(a) == logit(b) && a < b);
      });
      sorted_ = end;
    }
    return order_[rank];
  }

  // Probability over that of the likeliest token.
  double weight(std::size_t rank) { return weight_of(token(rank)); }

  double total_weight() const {
    double total = 0.0;
    for (const std::int32_t id : order_) {
      total += weight_of(id);
    }
    return total;
  }

 private:
  float logit(std::int32_t id) const { return logits_[static_cast<std::size_t>(id)]; }

  double weight_of(std::int32_t id) const {
    return std::exp((double{logit(id)} - double{highest_}) / temperature_);
  }

  std::span<const float> logits_;
  float highest_;
  double temperature_;
  std::vector<std::int32_t> order_;
  std::size_t sorted_ = 0;
};

// The tokens that are left, the first so many of the ranking, and the sum of their weights.
struct Kept {
  std::size_t count = 0;
  double weight = 0.0;
};

Kept keep_top_k(Ranking& ranking, std::int64_t top_k) {
  if (top_k == 0 || top_k >= static_cast<std::int64_t>(ranking.size())) {
    return {.count = ranking.size(), .weight = ranking.total_weight()};
  }
  Kept kept;
  while (kept.count < static_cast<std::size_t>(top_k)) {
    kept.weight += ranking.weight(kept.count++);
  }
  return kept;
}

// Of `candidates`, what top_p and min_p leave: one token at least.
Kept keep_likely(Ranking& ranking, const Kept& candidates, const SamplingOptions& options) {
  Kept kept{.count = 1, .weight = ranking.weight(0)};
  while (kept.count < candidates.count && kept.weight < options.top_p * candidates.weight) {
    const double next = ranking.weight(kept.count);
    if (next < options.min_p) {
      break;
    }
    kept.weight += next;
    ++kept.count;
  }
  return kept;
}

}  // namespace

void penalize_repetition(std::span<float> logits,
                         std::span<const std::int32_t> tokens,
                         double penalty) {
  std::vector<std::int32_t> seen(tokens.begin(), tokens.end());
  std::ranges::sort(seen);
  const auto end = std::unique(seen.begin(), seen.end());
  for (auto token = seen.begin(); token != end; ++token) {
    float& logit = logits[static_cast<std::size_t>(*token)];
    const double value = logit;
    logit = static_cast<float>(value > 0.0 ? value / penalty : value * penalty);
  }
}

std::int32_t sample_token(std::span<const float> logits,
                          const SamplingOptions& options,
                          double uniform) {
  TESSERA_REQUIRE(!logits.empty(), ErrorCode::kInvalidArgument, "no logits to sample from");
  TESSERA_REQUIRE(std::ranges::none_of(logits, [](float logit) { return std::isnan(logit); }),
                  ErrorCode::kInvalidData,
                  "the model's logits are not numbers: it has diverged; use an earlier checkpoint");
  if (options.temperature <= 0.0) {
    return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
  Ranking ranking(logits, options.temperature);
  Kept kept = keep_top_k(ranking, options.top_k);
  if (options.top_p < 1.0 || options.min_p > 0.0) {
    kept = keep_likely(ranking, kept, options);
  }
  double remaining = uniform * kept.weight;
  for (std::size_t rank = 0; rank < kept.count; ++rank) {
    remaining -= ranking.weight(rank);
    if (remaining < 0.0) {
      return ranking.token(rank);
    }
  }
  // Sums in another order may leave a rest, which goes to the last token that has any weight.
  while (kept.count > 1 && ranking.weight(kept.count - 1) == 0.0) {
    --kept.count;
  }
  return ranking.token(kept.count - 1);
}

}  // namespace tessera
