#include "tessera/train/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {

std::int32_t sample_token(std::span<const float> logits,
                          const SamplingOptions& options,
                          double uniform) {
  TESSERA_REQUIRE(!logits.empty(), ErrorCode::kInvalidArgument, "no logits to sample from");
  TESSERA_REQUIRE(std::ranges::none_of(logits, [](float logit) { return std::isnan(logit); }),
                  ErrorCode::kInvalidData,
                  "the model's logits are not numbers: it has diverged; use an earlier checkpoint");
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logit(a) > logit(b);
  });
  if (options.temperature <= 0.0) {
    return order[0];
  }
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(order.size())) {
    order.resize(static_cast<std::size_t>(options.top_k));
  }
  std::vector<double> weights;
  for (const std::int32_t id : order) {
    weights.push_back(
        std::exp((double{logit(id)} - double{logit(order[0])}) / options.temperature));
  }
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0.0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * total)) {
    kept += weights[count++];
  }
  double remaining = uniform * kept;
  for (std::size_t i = 0; i < count; ++i) {
    remaining -= weights[i];
    if (remaining < 0.0) {
      return order[i];
    }
  }
  return order[count - 1];
}

}  // namespace tessera
