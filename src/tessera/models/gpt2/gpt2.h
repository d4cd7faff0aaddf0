#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/family.h"
#include "tessera/models/model.h"

namespace tessera {

// GPT-2: pre-norm blocks of attention and a GELU feed-forward layer, layer norms and biases,
// learned positions, and the embedding as head. Its relatives: MPT has no biases, BLOOM and MPT
// have ALiBi in place of positions; both as Hugging Face does not write them under "gpt2". Source:
// Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"
struct Gpt2Config {
  std::int64_t dim = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t padded_vocab = 0;  // rows of the embedding, of which `vocab` count
  std::int64_t positions = 0;     // the longest sequence
  double norm_eps = 1e-5;
  bool bias = true;           // of products and norms
  bool alibi = false;         // else learned positions
  bool squared_relu = false;  // else GELU

  friend bool operator==(const Gpt2Config&, const Gpt2Config&) = default;
};

// What [model] says of a GPT-2. Errors: kInvalidConfig naming the key.
Gpt2Config gpt2_config(const ModelSection& given);

// Writes the forward graph. Errors: kInvalidConfig for a sequence longer than learned
// `positions`.
ModelOutputs gpt2(GraphBuilder& builder, const Gpt2Config& config, const ModelInputs& inputs);

// The model as the trainer takes it.
ModelDescription describe_gpt2(const Gpt2Config& config);

// As transformers' GPT2LMHeadModel: matrices transposed, q, k and v in one.
std::vector<HuggingFaceWeight> hugging_face_weights(const Gpt2Config& config);
std::string hugging_face_config(const Gpt2Config& config, const HuggingFaceFacts& facts);

// Errors: kInvalidData naming file and key for what this GPT-2 is not.
ModelSection gpt2_from_hugging_face(const HuggingFaceConfig& config);

// model.name = "gpt2".
ModelFamily gpt2_family();

}  // namespace tessera
