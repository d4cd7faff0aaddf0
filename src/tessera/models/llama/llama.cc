#include "tessera/models/llama/llama.h"

#include <cmath>
#include <string>

#include "tessera/base/format.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/norm/norm.h"
#include "tessera/ops/rope/rope.h"
#include "tessera/ops/swiglu/swiglu.h"

namespace tessera {
namespace {

// The names of dims, which plans map to mesh axes.
struct LlamaDims {
  Dim embed;
  Dim heads;
  Dim kv_heads;
  Dim head_dim;
  Dim mlp;
  Dim vocab;
};

class LlamaWriter {
 public:
  LlamaWriter(GraphBuilder& builder, const LlamaConfig& config, const ModelInputs& inputs)
      : builder_(builder),
        config_(config),
        inputs_(inputs),
        dims_{.embed = {.name = "embed", .bound = config.dim},
              .heads = {.name = "heads", .bound = config.heads},
              .kv_heads = {.name = "kv_heads", .bound = config.kv_heads},
              .head_dim = {.name = "head_dim", .bound = config.dim / config.heads},
              .mlp = {.name = "mlp", .bound = config.ffn},
              .vocab = {.name = "vocab", .bound = config.vocab}} {}

  ModelOutputs write() {
    const Initializer head_init{.std = 1.0 / std::sqrt(static_cast<double>(config_.dim)),
                                .cut = 3.0};
    const Value table = builder_.parameter("tok_embeddings.weight",
                                           weight({dims_.vocab, dims_.embed}),
                                           config_.tied ? head_init : Initializer{.std = 1.0});
    table_ = rope_table(inputs_.positions, rope_attrs(config_));
    Value x = embedding(table, inputs_.tokens);
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      builder_.set_layer(static_cast<std::int32_t>(layer));
      x = block(x, layer);
    }
    builder_.set_layer(-1);
    const Value hidden = rms_norm(x, gain("norm.weight"), config_.norm_eps);
    const Value head =
        config_.tied
            ? table
            : builder_.parameter("output.weight", weight({dims_.vocab, dims_.embed}), head_init);
    return {.hidden = hidden, .head = head};
  }

 private:
  Value block(const Value& x, std::int64_t layer) {
    const std::string prefix = format("layers.{}.", layer);
    const double deep_std = 0.02 / std::sqrt(2.0 * static_cast<double>(layer + 1));

    const Value a = rms_norm(x, gain(prefix + "attention_norm.weight"), config_.norm_eps);
    const auto project = [&](const char* which, const Dim& heads) {
      return linear(a,
                    builder_.parameter(prefix + "attention." + which + ".weight",
                                       weight({heads, dims_.head_dim, dims_.embed}),
                                       {.std = 0.02}));
    };
    const Value q = rope(project("wq", dims_.heads), table_);
    const Value k = rope(project("wk", dims_.kv_heads), table_);
    const Value v = project("wv", dims_.kv_heads);
    const SequenceIds ids{.positions = inputs_.positions, .documents = inputs_.documents};
    const double scale = 1.0 / std::sqrt(static_cast<double>(dims_.head_dim.bound));
    const Value o = attention(q, k, v, ids, ids, {.scale = scale});
    const Value wo = builder_.parameter(prefix + "attention.wo.weight",
                                        weight({dims_.embed, dims_.heads, dims_.head_dim}),
                                        {.std = deep_std});
    const Value h = add(x, linear(o, wo, 2));

    const Value b = rms_norm(h, gain(prefix + "ffn_norm.weight"), config_.norm_eps);
    const auto widen = [&](const char* which, double std) {
      return linear(b,
                    builder_.parameter(prefix + "feed_forward." + which + ".weight",
                                       weight({dims_.mlp, dims_.embed}),
                                       {.std = std}));
    };
    const Value gate = widen("w1", 0.02);
    const Value up = widen("w3", deep_std);
    const Value w2 = builder_.parameter(
        prefix + "feed_forward.w2.weight", weight({dims_.embed, dims_.mlp}), {.std = deep_std});
    return add(h, linear(swiglu(gate, up), w2));
  }

  Value gain(const std::string& name) {
    return builder_.parameter(name, weight({dims_.embed}), {.mean = 1.0});
  }

  TensorType weight(std::vector<Dim> dims) const {
    return {.dtype = builder_.compute_dtype(), .dims = std::move(dims)};
  }

  GraphBuilder& builder_;
  const LlamaConfig& config_;
  const ModelInputs& inputs_;
  LlamaDims dims_;
  Value table_;
};

}  // namespace

RopeTableAttrs rope_attrs(const LlamaConfig& config) {
  RopeTableAttrs attrs{.head_dim = config.dim / config.heads, .theta = config.rope_theta};
  if (config.rope_scaling) {
    attrs.scaling_factor = config.rope_factor;
  }
  return attrs;
}

ModelOutputs llama(GraphBuilder& builder, const LlamaConfig& config, const ModelInputs& inputs) {
  return LlamaWriter(builder, config, inputs).write();
}

}  // namespace tessera
