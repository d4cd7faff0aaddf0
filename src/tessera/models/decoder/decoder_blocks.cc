#include "tessera/models/decoder/decoder_blocks.h"

#include <cmath>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/base/half.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/bias/bias.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/norm/norm.h"
#include "tessera/ops/rope/rope.h"
#include "tessera/ops/swiglu/swiglu.h"

namespace tessera {
namespace {

constexpr double kStd = 0.02;

}  // namespace

DecoderBlocks::DecoderBlocks(GraphBuilder& builder,
                             const DecoderConfig& config,
                             const ModelInputs& inputs,
                             const DecoderStyle& style)
    : builder_(builder),
      config_(config),
      inputs_(inputs),
      style_(style),
      embed_{.name = "embed", .bound = config.dim},
      heads_{.name = "heads", .bound = config.heads},
      kv_heads_{.name = "kv_heads", .bound = config.kv_heads},
      head_dim_{.name = "head_dim", .bound = config.head()},
      mlp_{.name = "mlp", .bound = config.ffn},
      vocab_{.name = "vocab", .bound = config.vocab} {}

ModelOutputs DecoderBlocks::write(const Block& block) {
  const Initializer head_init{.std = 1.0 / std::sqrt(static_cast<double>(config_.dim)), .cut = 3.0};
  const Value table = parameter("tok_embeddings.weight",
                                {vocab_, embed_},
                                config_.tied ? head_init : Initializer{.std = 1.0});
  rope_table_ = rope_table(inputs_.positions, rope_attrs(config_, inputs_.length));
  if (config_.rope_local_theta > 0.0) {
    local_table_ = rope_table(inputs_.positions,
                              {.head_dim = config_.head(), .theta = config_.rope_local_theta});
  }
  Value x = embedding(table, inputs_.tokens);
  if (style_.scaled_embedding) {
    const auto root = static_cast<float>(std::sqrt(static_cast<double>(config_.dim)));
    const bool is_half = builder_.compute_dtype() == DType::kBF16;
    x = multiply(x, is_half ? to_float(to_bfloat16(root)) : root);
  }
  for (layer_ = 0; layer_ < config_.layers; ++layer_) {
    builder_.set_layer(static_cast<std::int32_t>(layer_));
    x = block(x, format("layers.{}.", layer_));
  }
  builder_.set_layer(-1);
  const Value hidden = norm(x, "norm");
  const Value head = config_.tied ? table : parameter("output.weight", {vocab_, embed_}, head_init);
  return {.hidden = hidden, .head = head, .softcap = config_.logits_softcap};
}

Value DecoderBlocks::norm(const Value& x, const std::string& name) {
  return norm_over(x, name, {embed_});
}

Value DecoderBlocks::head_norm(const Value& x, const std::string& name) {
  return norm_over(x, name, {head_dim_});
}

Value DecoderBlocks::query_norm(const Value& q, const std::string& name) {
  return norm_over(q, name, {heads_, head_dim_});
}

Value DecoderBlocks::key_norm(const Value& k, const std::string& name) {
  return norm_over(k, name, {kv_heads_, head_dim_});
}

Value DecoderBlocks::norm_over(const Value& x, const std::string& name, std::vector<Dim> dims) {
  const Value gain =
      parameter(name + ".weight", std::move(dims), {.mean = 1.0 - style_.gain_offset});
  return rms_norm(x, gain, config_.norm_eps, style_.gain_offset);
}

Value DecoderBlocks::queries(const Value& x, const std::string& layer, bool bias) {
  return project(x, layer + "attention.wq", heads_, bias);
}

Value DecoderBlocks::keys(const Value& x, const std::string& layer, bool bias) {
  return project(x, layer + "attention.wk", kv_heads_, bias);
}

Value DecoderBlocks::values(const Value& x, const std::string& layer, bool bias) {
  return project(x, layer + "attention.wv", kv_heads_, bias);
}

Value DecoderBlocks::turned(const Value& x) const {
  const bool is_turned_apart = config_.rope_local_theta > 0.0 && config_.is_local(layer_);
  return rope(x, is_turned_apart ? local_table_ : rope_table_);
}

Value DecoderBlocks::attend(
    const Value& q, const Value& k, const Value& v, const std::string& layer, bool bias) {
  const SequenceIds ids{.positions = inputs_.positions, .documents = inputs_.documents};
  const double size = config_.query_pre_attn_scalar > 0.0 ? config_.query_pre_attn_scalar
                                                          : static_cast<double>(head_dim_.bound);
  const Value o = attention(q,
                            k,
                            v,
                            ids,
                            ids,
                            {.scale = 1.0 / std::sqrt(size),
                             .window = config_.is_local(layer_) ? config_.window : 0,
                             .softcap = config_.attention_softcap});
  const std::string name = layer + "attention.wo";
  const Value wo = parameter(name + ".weight", {embed_, heads_, head_dim_}, {.std = deep_std()});
  const Value y = linear(o, wo, 2);
  return bias ? add_bias(y, parameter(name + ".bias", {embed_}, {})) : y;
}

Value DecoderBlocks::feed_forward(const Value& x, const std::string& layer, Gate gate) {
  const auto widen = [&](const char* which, double std) {
    return linear(
        x, parameter(layer + "feed_forward." + which + ".weight", {mlp_, embed_}, {.std = std}));
  };
  const Value opened = widen("w1", kStd);
  const Value up = widen("w3", deep_std());
  const Value w2 = parameter(layer + "feed_forward.w2.weight", {embed_, mlp_}, {.std = deep_std()});
  return linear(gate == Gate::kSilu ? swiglu(opened, up) : mul(gelu(opened), up), w2);
}

Value DecoderBlocks::project(const Value& x, const std::string& name, const Dim& heads, bool bias) {
  const Value y = linear(x, parameter(name + ".weight", {heads, head_dim_, embed_}, {.std = kStd}));
  return bias ? add_bias(y, parameter(name + ".bias", {heads, head_dim_}, {})) : y;
}

Value DecoderBlocks::parameter(const std::string& name, std::vector<Dim> dims, Initializer init) {
  return builder_.parameter(
      name, {.dtype = builder_.compute_dtype(), .dims = std::move(dims)}, init);
}

double DecoderBlocks::deep_std() const {
  return kStd / std::sqrt(2.0 * static_cast<double>(layer_ + 1));
}

}  // namespace tessera
