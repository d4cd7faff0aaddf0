#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tessera/ir/adapters.h"
#include "tessera/ir/builder.h"

namespace tessera {

// What a model reads, by sequence and position: (batch, seq) i32 each. `length` is how long a
// sequence of the program may be: seq or, where earlier tokens are in a cache, all of the cache.
struct ModelInputs {
  Value tokens;
  Value positions;
  Value documents;
  std::int64_t length = 0;
};

// What a model computes: hidden states (batch, seq, embed) and the head (vocab, embed), whose
// product, under a cap where there is one, are the logits. Loss and sampling are built on top, so
// that the full logits never exist.
struct ModelOutputs {
  Value hidden;
  Value head;
  std::int64_t vocab = 0;  // rows of the head that count, the others are padding; 0: all
  double softcap = 0.0;    // of the logits: they are softcap tanh(product / softcap); 0: none
};

// A model is a function that writes its forward graph. It says nothing about parallelism, gradients
// or memory: plans map the names of dims to mesh axes.
using Model = std::function<ModelOutputs(GraphBuilder& builder, const ModelInputs& inputs)>;

// A model and the sizes that the rest of the program needs to know.
struct ModelDescription {
  Model model;
  std::int64_t vocab = 0;  // ids that the model predicts, without padding
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t num_embedding_parameters = 0;  // looked up, not multiplied: left out of FLOP counts
  std::string json = "{}";                    // what a checkpoint must agree with, as a JSON object
  std::optional<AdapterOptions> adapters = {};  // of its weights; none: every weight is trained
};

struct ParameterCounts {
  std::int64_t all = 0;
  std::int64_t frozen = 0;
  std::int64_t buffers = 0;  // elements that are not among `all`
};

// Training FLOP per token in TorchTitan's convention, without a discount for causal attention:
// 6 (N - N_embedding) + 6 layers heads 2 head_dim seq. A weight that is frozen costs 4 in place of
// 6: no gradient of it is made.
double training_flop_per_token(const ModelDescription& description,
                               const ParameterCounts& parameters,
                               std::int64_t sequence_length);

}  // namespace tessera
