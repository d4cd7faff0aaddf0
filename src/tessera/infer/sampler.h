#pragma once

#include <cstdint>
#include <span>

namespace tessera {

struct SamplingOptions {
  double temperature = 1.0;  // 0 = always the likeliest
  std::int64_t top_k = 0;    // 0 = all
  double top_p = 1.0;        // 1 = all
  double min_p = 0.0;        // 0 = all
};

// Divides the positive logits of the tokens that occur in `tokens` by `penalty` and multiplies the
// negative ones with it, once each. Source: Keskar et al. 2019 (CTRL), arXiv:1909.05858,
// section 4.1
void penalize_repetition(std::span<float> logits,
                         std::span<const std::int32_t> tokens,
                         double penalty);

// Draws a token. The filters go one after the other: softmax(logits / temperature), cut to the
// top_k likeliest, then to the smallest set whose share of what is left reaches top_p, then to
// tokens at least min_p times as likely as the likeliest. `uniform` in [0, 1) decides; the
// likeliest token comes first, and of equally likely ones the smaller id. Errors: kInvalidArgument
// if there are no logits; kInvalidData where one is not a number.
std::int32_t sample_token(std::span<const float> logits,
                          const SamplingOptions& options,
                          double uniform);

}  // namespace tessera
