#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/models/family.h"
#include "tessera/models/model.h"
#include "tessera/ops/rope/rope.h"

namespace tessera {

// Llama 3 and its relatives: pre-norm blocks of grouped-query attention with rotary positions and a
// SwiGLU feed-forward layer, no biases.
// Source: Grattafiori et al. 2024, arXiv:2407.21783
struct LlamaConfig {
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

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

// The published sizes: debug, 1B, 3B, 8B, 70B, 405B. Errors: kInternal for any other name.
LlamaConfig llama_flavor(std::string_view flavor);

// Errors: kInvalidConfig where sizes are not positive, heads do not divide dim, kv_heads do not
// divide heads, or the head size is odd.
void validate(const LlamaConfig& config);

// How it turns queries and keys.
RopeTableAttrs rope_attrs(const LlamaConfig& config);

// Writes the forward graph.
ModelOutputs llama(GraphBuilder& builder, const LlamaConfig& config, const ModelInputs& inputs);

// The model as the trainer takes it.
ModelDescription describe_llama(const LlamaConfig& config);

// What [model] says of a Llama, its flavor's sizes replaced by those that are given.
// Errors: as validate().
LlamaConfig llama_config(const ModelSection& section);

// model.name = "llama3".
ModelFamily llama_family();

}  // namespace tessera
