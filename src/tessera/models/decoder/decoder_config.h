#pragma once

#include <cstdint>
#include <vector>

#include "tessera/ops/rope/rope.h"

namespace tessera {

// The sizes of Llama and its relatives: decoders of RMS norms, grouped-query attention with rotary
// positions and gated feed-forward layers. A family has no use for some of them (its table says
// for which it has).
struct DecoderConfig {
  std::int64_t dim = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  bool tied = false;          // the head is the embedding
  bool rope_scaling = false;  // Llama 3.1's stretch of long wavelengths
  double rope_factor = 8.0;   // by so much
  double rope_theta = 500000.0;
  double norm_eps = 1e-5;
  std::int64_t head_dim = 0;    // 0: dim / heads
  bool attention_bias = false;  // of queries, keys, values and attention's output
  std::int64_t window = 0;      // positions up to its own that a token sees; 0: all
  // The last layer of each so many sees all, and is turned by rope_theta, scaled; the others have
  // the window, and where rope_local_theta is not 0, are turned by that, unscaled. 0: all layers
  // are alike.
  std::int64_t global_every = 0;
  double rope_local_theta = 0.0;
  double query_pre_attn_scalar = 0.0;  // attention's scale is its -1/2 power; 0: that of head()
  double attention_softcap = 0.0;      // of scores; 0: none
  double logits_softcap = 0.0;         // 0: none
  // Other ways to reach longer texts than a model was trained on; 1: none, one at most.
  double rope_linear_factor = 1.0;   // positions divided by so much
  double rope_dynamic_factor = 1.0;  // theta raised where a program's sequences are longer
  double rope_yarn_factor = 1.0;     // YaRN, of betas 32 and 1
  // LongRoPE's divisors of each frequency, in programs whose sequences have up to the original
  // length, and in those of longer ones; none: it is not used.
  std::vector<double> rope_short_factors = {};
  std::vector<double> rope_long_factors = {};
  std::int64_t rope_original_length = 0;  // tokens of a text that the last three start from
  std::int64_t rope_scaled_length = 0;    // of the longest text that LongRoPE is for

  bool has_long_rope() const { return !rope_short_factors.empty(); }

  std::int64_t head() const { return head_dim > 0 ? head_dim : dim / heads; }

  // Whether layer `number` (from 0) has the window, and the frequencies of such layers.
  bool is_local(std::int64_t number) const {
    return global_every == 0 || (number + 1) % global_every != 0;
  }

  // With head_dim 0 where it says nothing more: equal sizes are equal configs.
  DecoderConfig canonical() const {
    DecoderConfig result = *this;
    result.head_dim = head() * heads == dim ? 0 : head_dim;
    return result;
  }

  friend bool operator==(const DecoderConfig&, const DecoderConfig&) = default;
};

// YaRN's factor on the table of angles, and LongRoPE's.
double yarn_magnitude(double factor);
double long_rope_magnitude(std::int64_t original_length, std::int64_t scaled_length);

// Errors: kInvalidConfig naming the key where sizes are not positive, heads do not divide dim
// (without a head_dim), kv_heads do not divide heads, the head size is odd, a window is too wide,
// a global_every has no window, or positions are scaled in two ways or in half of one.
void validate(const DecoderConfig& config);

// How it turns queries and keys in programs whose sequences have up to `length` tokens.
// Source: of the dynamic factor, transformers' _compute_dynamic_ntk_parameters; of YaRN, Peng et
// al. 2023, arXiv:2309.00071; of LongRoPE, Ding et al. 2024, arXiv:2402.13753, and transformers'
// _compute_longrope_parameters
RopeTableAttrs rope_attrs(const DecoderConfig& config, std::int64_t length);

}  // namespace tessera
