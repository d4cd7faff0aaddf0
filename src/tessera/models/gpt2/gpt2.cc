#include "tessera/models/gpt2/gpt2.h"

#include <cmath>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/bias/bias.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/fill/fill.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/norm/norm.h"
#include "tessera/ops/scale_mask_softmax/scale_mask_softmax.h"
#include "tessera/ops/squared_relu/squared_relu.h"

namespace tessera {
namespace {

// The names of dims, which plans map to mesh axes.
struct Gpt2Dims {
  Dim embed;
  Dim heads;
  Dim head_dim;
  Dim mlp;
  Dim vocab;
  Dim positions;
};

class Gpt2Writer {
 public:
  Gpt2Writer(GraphBuilder& builder, const Gpt2Config& config, const ModelInputs& inputs)
      : builder_(builder),
        config_(config),
        inputs_(inputs),
        dims_{.embed = {.name = "embed", .bound = config.dim},
              .heads = {.name = "heads", .bound = config.heads},
              .head_dim = {.name = "head_dim", .bound = config.dim / config.heads},
              .mlp = {.name = "mlp", .bound = config.ffn},
              .vocab = {.name = "vocab", .bound = config.padded_vocab},
              .positions = {.name = "positions", .bound = config.positions}} {}

  ModelOutputs write() {
    const Value table = parameter("tok_embeddings.weight", {dims_.vocab, dims_.embed}, 0.02);
    Value x = embedding(table, inputs_.tokens);
    if (!config_.alibi) {
      x = add(x, places());
    }
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      builder_.set_layer(static_cast<std::int32_t>(layer));
      x = block(x, format("layers.{}.", layer));
    }
    builder_.set_layer(-1);
    return {.hidden = norm(x, "norm"), .head = table, .vocab = config_.vocab};
  }

 private:
  Value places() {
    const std::int64_t length = inputs_.tokens.type().dims[1].bound;
    TESSERA_REQUIRE(length <= config_.positions,
                    ErrorCode::kInvalidConfig,
                    "sequences of {} tokens, expected at most model.positions = {}",
                    length,
                    config_.positions);
    const Value table = parameter("pos_embeddings.weight", {dims_.positions, dims_.embed}, 0.01);
    return embedding(table, inputs_.positions);
  }

  Value block(const Value& x, const std::string& prefix) {
    // The sum of all layers' outputs starts with the variance of one.
    const double deep_std = 0.02 / std::sqrt(2.0 * static_cast<double>(config_.layers));

    const Value a = norm(x, prefix + "attention_norm");
    const auto project = [&](const char* which) {
      const std::string name = prefix + "attention." + which;
      const Value y =
          linear(a, parameter(name + ".weight", {dims_.heads, dims_.head_dim, dims_.embed}, 0.02));
      return biased(y, name, {dims_.heads, dims_.head_dim});
    };
    const Value q = project("wq");
    const Value k = project("wk");
    const Value v = project("wv");
    const Value o = attend(q, k, v);
    const Value wo = parameter(
        prefix + "attention.wo.weight", {dims_.embed, dims_.heads, dims_.head_dim}, deep_std);
    const Value h = add(x, biased(linear(o, wo, 2), prefix + "attention.wo", {dims_.embed}));

    const Value b = norm(h, prefix + "ffn_norm");
    const Value w1 = parameter(prefix + "feed_forward.w1.weight", {dims_.mlp, dims_.embed}, 0.02);
    const Value u = biased(linear(b, w1), prefix + "feed_forward.w1", {dims_.mlp});
    const Value wide = config_.squared_relu ? squared_relu(u) : gelu(u);
    const Value w2 =
        parameter(prefix + "feed_forward.w2.weight", {dims_.embed, dims_.mlp}, deep_std);
    return add(h, biased(linear(wide, w2), prefix + "feed_forward.w2", {dims_.embed}));
  }

  Value attend(const Value& q, const Value& k, const Value& v) {
    const SequenceIds ids{.positions = inputs_.positions, .documents = inputs_.documents};
    const double scale = 1.0 / std::sqrt(static_cast<double>(dims_.head_dim.bound));
    return config_.alibi
               ? softmax_attention(
                     q, k, v, ids, {.scale = scale, .mask = {.alibi_heads = config_.heads}})
               : attention(q, k, v, ids, ids, {.scale = scale});
  }

  Value norm(const Value& x, const std::string& name) {
    const Value gain =
        builder_.parameter(name + ".weight", weight({dims_.embed}), Initializer{.mean = 1.0});
    const std::string bias = name + ".bias";
    return layer_norm(x,
                      gain,
                      config_.bias ? parameter(bias, {dims_.embed}, 0.0) : zeros({dims_.embed}),
                      config_.norm_eps);
  }

  Value biased(const Value& x, const std::string& name, std::vector<Dim> dims) {
    return config_.bias ? add_bias(x, parameter(name + ".bias", std::move(dims), 0.0)) : x;
  }

  Value parameter(const std::string& name, std::vector<Dim> dims, double std) {
    return builder_.parameter(name, weight(std::move(dims)), Initializer{.std = std});
  }

  Value zeros(std::vector<Dim> dims) {
    return builder_.emit(make_op(FillAttrs{.type = weight(std::move(dims))}),
                         std::vector<Value>())[0];
  }

  TensorType weight(std::vector<Dim> dims) const {
    return {.dtype = builder_.compute_dtype(), .dims = std::move(dims)};
  }

  GraphBuilder& builder_;
  const Gpt2Config& config_;
  const ModelInputs& inputs_;
  Gpt2Dims dims_;
};

}  // namespace

ModelOutputs gpt2(GraphBuilder& builder, const Gpt2Config& config, const ModelInputs& inputs) {
  return Gpt2Writer(builder, config, inputs).write();
}

}  // namespace tessera
