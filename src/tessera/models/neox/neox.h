#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/family.h"
#include "tessera/models/model.h"
#include "tessera/ops/rope/rope.h"

namespace tessera {

// GPT-NeoX and its relatives, Pythia among them: attention and a GELU feed-forward layer side by
// side, or one after the other, each after its own layer norm, biases, rotary positions on the
// first part of each head, a head of its own. Source: Black et al. 2022, arXiv:2204.06745
struct NeoxConfig {
  std::int64_t dim = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t padded_vocab = 0;  // rows of embedding and head, of which `vocab` count
  double rotary_fraction = 0.25;  // of each head
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;
  bool bias = true;               // of products and norms
  bool squared_relu = false;      // else GELU
  bool exact_gelu = false;        // by the error function, as Pythia's
  bool parallel_residual = true;  // attention and feed-forward read the same x

  friend bool operator==(const NeoxConfig&, const NeoxConfig&) = default;
};

// What [model] says of a GPT-NeoX. Errors: kInvalidConfig naming the key.
NeoxConfig neox_config(const ModelSection& given);

// Elements of each head that are turned.
std::int64_t rotary_dim(const NeoxConfig& config);

// Writes the forward graph.
ModelOutputs neox(GraphBuilder& builder, const NeoxConfig& config, const ModelInputs& inputs);

// The model as the trainer takes it.
ModelDescription describe_neox(const NeoxConfig& config);

// As transformers' GPTNeoXForCausalLM: q, k and v of each head by turns.
std::vector<HuggingFaceWeight> hugging_face_weights(const NeoxConfig& config);
std::string hugging_face_config(const NeoxConfig& config, const HuggingFaceFacts& facts);

// Errors: kInvalidData naming file and key for what this GPT-NeoX is not.
ModelSection neox_from_hugging_face(const HuggingFaceConfig& config);

// model.name = "neox".
ModelFamily neox_family();

}  // namespace tessera
