#pragma once

#include <cstdint>
#include <span>

namespace tessera {

struct SamplingOptions {
  double temperature = 1.0;  // 0 = always the likeliest
  std::int64_t top_k = 0;    // 0 = all
  double top_p = 1.0;        // 1 = all
};

// Draws a token: softmax(logits / temperature) cut to the top_k likeliest, then to the smallest set
// whose probability reaches top_p. `uniform` in [0, 1) decides; the likeliest token comes first,
// and of equally likely ones the smaller id. Errors: kInvalidArgument if there are no logits;
// kInvalidData where one is not a number.
std::int32_t sample_token(std::span<const float> logits,
                          const SamplingOptions& options,
                          double uniform);

}  // namespace tessera
