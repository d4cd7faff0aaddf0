#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// What [model] says. What is left out follows from the flavor, the weights or the family; each
// family refuses what it has no use for.
struct ModelSection {
  std::string name = "llama3";
  std::string flavor = {};   // empty = the dims below say all
  std::string weights = {};  // to start from: a Hugging Face directory, a checkpoint, a run
  bool grow_vocab = false;   // these may have fewer ids
  std::optional<std::int64_t> dim = {};
  std::optional<std::int64_t> layers = {};
  std::optional<std::int64_t> heads = {};
  std::optional<std::int64_t> kv_heads = {};
  std::optional<std::int64_t> head_dim = {};
  std::optional<std::int64_t> ffn = {};
  std::optional<std::int64_t> vocab = {};
  std::optional<std::int64_t> padded_vocab = {};
  std::optional<std::int64_t> positions = {};
  std::optional<std::int64_t> window = {};
  std::optional<std::int64_t> global_every = {};
  std::optional<double> query_pre_attn_scalar = {};
  std::optional<double> attention_softcap = {};
  std::optional<double> logits_softcap = {};
  std::optional<bool> tied = {};
  std::optional<bool> attention_bias = {};
  std::optional<bool> bias = {};
  std::optional<bool> alibi = {};
  std::optional<bool> squared_relu = {};
  std::optional<bool> exact_gelu = {};
  std::optional<bool> parallel_residual = {};
  std::optional<bool> rope_scaling = {};
  std::optional<double> rope_factor = {};
  std::optional<double> rope_linear_factor = {};
  std::optional<double> rope_dynamic_factor = {};
  std::optional<double> rope_yarn_factor = {};
  std::optional<std::vector<double>> rope_short_factors = {};
  std::optional<std::vector<double>> rope_long_factors = {};
  std::optional<std::int64_t> rope_original_length = {};
  std::optional<std::int64_t> rope_scaled_length = {};
  std::optional<double> rope_theta = {};
  std::optional<double> rope_local_theta = {};
  std::optional<double> rotary_fraction = {};
  std::optional<double> norm_eps = {};

  bool operator==(const ModelSection&) const = default;
};

}  // namespace tessera
