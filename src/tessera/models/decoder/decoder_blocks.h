#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/ir/builder.h"
#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/model.h"

namespace tessera {

// How a family's decoders are made, beside their sizes.
struct DecoderStyle {
  double gain_offset = 0.0;       // norms multiply by this and the gain
  bool scaled_embedding = false;  // by the root of its width, which is rounded as weights are
};

// What opens the gate of a feed-forward layer: SwiGLU, and GEGLU with GELU's tanh form.
enum class Gate : std::uint8_t { kSilu, kGelu };

// The parts that the pages of decoders are made of. Each declares its parameters under
// `layer` + "attention.wq.weight" and so on; dims have the names that plans map to mesh axes. x,
// and what parts of a layer make of it, is (batch, seq, embed); heads are (batch, seq, heads,
// head_dim).
class DecoderBlocks {
 public:
  // Borrows the first three.
  DecoderBlocks(GraphBuilder& builder,
                const DecoderConfig& config,
                const ModelInputs& inputs,
                const DecoderStyle& style = {});

  // block(x, layer) makes of the residual stream that after one more layer, whose parameters' names
  // begin with `layer` ("layers.0.").
  using Block = std::function<Value(const Value& x, const std::string& layer)>;

  // Embedding, the layers, the last norm, the head.
  ModelOutputs write(const Block& block);

  // An RMS norm with the gain `name`.weight.
  Value norm(const Value& x, const std::string& name);

  // The same over each head of q or k, with one gain for all heads; and over all heads of q, or of
  // k, as if they were one.
  Value head_norm(const Value& x, const std::string& name);
  Value query_norm(const Value& q, const std::string& name);
  Value key_norm(const Value& k, const std::string& name);

  Value queries(const Value& x, const std::string& layer, bool bias = false);
  Value keys(const Value& x, const std::string& layer, bool bias = false);
  Value values(const Value& x, const std::string& layer, bool bias = false);

  // Queries or keys, turned by their positions as the layer has it.
  Value turned(const Value& x) const;

  // Causal attention inside documents and the layer's window, its scores capped, back to the width
  // of the residual stream.
  Value attend(
      const Value& q, const Value& k, const Value& v, const std::string& layer, bool bias = false);

  Value feed_forward(const Value& x, const std::string& layer, Gate gate = Gate::kSilu);

 private:
  // An RMS norm whose gain has these dims.
  Value norm_over(const Value& x, const std::string& name, std::vector<Dim> dims);

  Value project(const Value& x, const std::string& name, const Dim& heads, bool bias);
  Value parameter(const std::string& name, std::vector<Dim> dims, Initializer init);

  // Of what is added to the residual stream.
  double deep_std() const;

  GraphBuilder& builder_;
  const DecoderConfig& config_;
  const ModelInputs& inputs_;
  DecoderStyle style_;
  Dim embed_;
  Dim heads_;
  Dim kv_heads_;
  Dim head_dim_;
  Dim mlp_;
  Dim vocab_;
  Value rope_table_;
  Value local_table_;  // of layers with a window, where they have another one
  std::int64_t layer_ = 0;
};

}  // namespace tessera
