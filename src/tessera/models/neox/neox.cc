#include "tessera/models/neox/neox.h"

#include <cmath>
#include <string>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/bias/bias.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/fill/fill.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/norm/norm.h"
#include "tessera/ops/squared_relu/squared_relu.h"

namespace tessera {
namespace {

// The names of dims, which plans map to mesh axes.
struct NeoxDims {
  Dim embed;
  Dim heads;
  Dim head_dim;
  Dim mlp;
  Dim vocab;
};

class NeoxWriter {
 public:
  NeoxWriter(GraphBuilder& builder, const NeoxConfig& config, const ModelInputs& inputs)
      : builder_(builder),
        config_(config),
        inputs_(inputs),
        dims_{.embed = {.name = "embed", .bound = config.dim},
              .heads = {.name = "heads", .bound = config.heads},
              .head_dim = {.name = "head_dim", .bound = config.dim / config.heads},
              .mlp = {.name = "mlp", .bound = config.ffn},
              .vocab = {.name = "vocab", .bound = config.padded_vocab}},
        small_std_(std::sqrt(0.4 / static_cast<double>(config.dim))),
        deep_std_(2.0 / static_cast<double>(config.layers) /
                  std::sqrt(static_cast<double>(config.dim))) {}

  ModelOutputs write() {
    const Value table = parameter("tok_embeddings.weight", {dims_.vocab, dims_.embed}, small_std_);
    table_ = rope_table(inputs_.positions,
                        {.head_dim = rotary_dim(config_), .theta = config_.rope_theta});
    Value x = embedding(table, inputs_.tokens);
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      builder_.set_layer(static_cast<std::int32_t>(layer));
      x = block(x, format("layers.{}.", layer));
    }
    builder_.set_layer(-1);
    const Value hidden = norm(x, "norm");
    return {.hidden = hidden,
            .head = parameter("output.weight", {dims_.vocab, dims_.embed}, small_std_),
            .vocab = config_.vocab};
  }

 private:
  // Side by side, both products are added before their biases: where they are sums over ranks, one
  // fold does.
  Value block(const Value& x, const std::string& prefix) {
    const Value a = norm(x, prefix + "attention_norm");
    const auto project = [&](const char* which) {
      const std::string name = prefix + "attention." + which;
      const Value y = linear(
          a, parameter(name + ".weight", {dims_.heads, dims_.head_dim, dims_.embed}, small_std_));
      return biased(y, name, {dims_.heads, dims_.head_dim});
    };
    const Value q = rope(project("wq"), table_);
    const Value k = rope(project("wk"), table_);
    const Value v = project("wv");
    const SequenceIds ids{.positions = inputs_.positions, .documents = inputs_.documents};
    const double scale = 1.0 / std::sqrt(static_cast<double>(dims_.head_dim.bound));
    const Value o = attention(q, k, v, ids, ids, {.scale = scale});
    const Value wo = parameter(
        prefix + "attention.wo.weight", {dims_.embed, dims_.heads, dims_.head_dim}, deep_std_);
    if (!config_.parallel_residual) {
      const Value h = add(x, biased(linear(o, wo, 2), prefix + "attention.wo", {dims_.embed}));
      const Value wide = widened(h, prefix);
      return add(
          h, biased(linear(wide, narrowing(prefix)), prefix + "feed_forward.w2", {dims_.embed}));
    }
    const Value wide = widened(x, prefix);
    const Value w2 = narrowing(prefix);
    const Value both =
        biased(add(linear(o, wo, 2), linear(wide, w2)), prefix + "attention.wo", {dims_.embed});
    return add(x, biased(both, prefix + "feed_forward.w2", {dims_.embed}));
  }

  // The feed-forward layer up to its last product, and that one's weight.
  Value widened(const Value& x, const std::string& prefix) {
    const Value b = norm(x, prefix + "ffn_norm");
    const Value w1 =
        parameter(prefix + "feed_forward.w1.weight", {dims_.mlp, dims_.embed}, small_std_);
    const Value u = biased(linear(b, w1), prefix + "feed_forward.w1", {dims_.mlp});
    return config_.squared_relu ? squared_relu(u) : gelu(u, config_.exact_gelu);
  }

  Value narrowing(const std::string& prefix) {
    return parameter(prefix + "feed_forward.w2.weight", {dims_.embed, dims_.mlp}, deep_std_);
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
  const NeoxConfig& config_;
  const ModelInputs& inputs_;
  NeoxDims dims_;
  // The paper's: sqrt(2 / (5 dim)) (Nguyen & Salazar 2019), and 2 / (layers sqrt(dim)) (Wang &
  // Komatsuzaki 2021) for what is added to the residual stream.
  double small_std_;
  double deep_std_;
  Value table_;
};

}  // namespace

std::int64_t rotary_dim(const NeoxConfig& config) {
  const std::int64_t head_dim = config.dim / config.heads;
  return static_cast<std::int64_t>(config.rotary_fraction * static_cast<double>(head_dim));
}

ModelOutputs neox(GraphBuilder& builder, const NeoxConfig& config, const ModelInputs& inputs) {
  return NeoxWriter(builder, config, inputs).write();
}

}  // namespace tessera
