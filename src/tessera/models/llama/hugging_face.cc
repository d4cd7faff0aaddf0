#include "tessera/models/llama/hugging_face.h"

#include "tessera/base/format.h"
#include "tessera/models/hugging_face_rope.h"
#include "tessera/ops/rope/rope.h"

namespace tessera {

std::vector<HuggingFaceWeight> hugging_face_weights(const LlamaConfig& config) {
  const std::int64_t head = config.dim / config.heads;
  const std::int64_t kv = head * config.kv_heads;
  std::vector<HuggingFaceWeight> weights;
  const auto add = [&](const std::string& name,
                       const std::string& parameter,
                       const std::vector<std::int64_t>& shape,
                       std::int64_t head_rows = 0) {
    weights.push_back({.name = name + ".weight",
                       .parts = {{.parameter = parameter + ".weight", .rotary_rows = head_rows}},
                       .shape = shape,
                       .head_rows = head_rows});
  };
  add("model.embed_tokens", "tok_embeddings", {config.vocab, config.dim});
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string theirs = format("model.layers.{}.", layer);
    const std::string ours = format("layers.{}.", layer);
    add(theirs + "self_attn.q_proj", ours + "attention.wq", {config.dim, config.dim}, head);
    add(theirs + "self_attn.k_proj", ours + "attention.wk", {kv, config.dim}, head);
    add(theirs + "self_attn.v_proj", ours + "attention.wv", {kv, config.dim});
    add(theirs + "self_attn.o_proj", ours + "attention.wo", {config.dim, config.dim});
    add(theirs + "mlp.gate_proj", ours + "feed_forward.w1", {config.ffn, config.dim});
    add(theirs + "mlp.up_proj", ours + "feed_forward.w3", {config.ffn, config.dim});
    add(theirs + "mlp.down_proj", ours + "feed_forward.w2", {config.dim, config.ffn});
    add(theirs + "input_layernorm", ours + "attention_norm", {config.dim});
    add(theirs + "post_attention_layernorm", ours + "ffn_norm", {config.dim});
  }
  add("model.norm", "norm", {config.dim});
  if (!config.tied) {
    add("lm_head", "output", {config.vocab, config.dim});
  }
  return weights;
}

std::string hugging_face_config(const LlamaConfig& config, const HuggingFaceFacts& facts) {
  const RopeTableAttrs rope = rope_attrs(config);
  HuggingFaceConfigText text;
  text.add("architectures", "[\"LlamaForCausalLM\"]");
  text.flag("attention_bias", false);
  text.real("attention_dropout", 0.0);
  text.tokens("bos_token_id", facts.bos);
  text.tokens("eos_token_id", facts.eos);
  text.number("head_dim", config.dim / config.heads);
  text.text("hidden_act", "silu");
  text.number("max_position_embeddings", facts.sequence_length);
  text.flag("mlp_bias", false);
  text.text("model_type", "llama");
  text.add("rope_scaling",
           rope.scaling_factor == 1.0
               ? "null"
               : format("{{\"factor\": {}, \"high_freq_factor\": {}, \"low_freq_factor\": {}, "
                        "\"original_max_position_embeddings\": {}, \"rope_type\": \"llama3\"}}",
                        python_float(rope.scaling_factor),
                        python_float(rope.high_frequency_factor),
                        python_float(rope.low_frequency_factor),
                        rope.original_length));
  text.dtype(facts.dtype);
  llama_sizes().write(text, config);
  return text.finish();
}

namespace {

void take_rope(const HuggingFaceConfig& config, LlamaConfig& result) {
  const HuggingFaceRope rope = read_rope(config, {});
  result.rope_theta = rope.theta;
  config.require(rope.fraction == 1.0, rope.fraction_key, "1.0: all of each head");
  config.require(
      rope.type == "default" || rope.type == "llama3", rope.type_key, "\"llama3\" or nothing");
  if (rope.type != "llama3") {
    return;
  }
  const std::string& object = rope.object;
  result.rope_scaling = true;
  result.rope_factor = config.real(object + "factor");
  const RopeTableAttrs known = rope_attrs(result);
  const auto require_known = [&](const std::string& name, double expected) {
    config.require(config.real(object + name) == expected, object + name, python_float(expected));
  };
  require_known("low_freq_factor", known.low_frequency_factor);
  require_known("high_freq_factor", known.high_frequency_factor);
  config.require(config.size(object + "original_max_position_embeddings") == known.original_length,
                 object + "original_max_position_embeddings",
                 format("{}", known.original_length));
  if (result.rope_factor == 1.0) {  // scales nothing, and is written as nothing
    result.rope_scaling = false;
    result.rope_factor = LlamaConfig().rope_factor;
  }
}

}  // namespace

LlamaConfig llama_from_hugging_face(const HuggingFaceConfig& config) {
  LlamaConfig result = llama_sizes().read(config);
  result.kv_heads = config.size("num_key_value_heads", result.heads);
  config.require(result.dim % result.heads == 0,
                 "num_attention_heads",
                 format("a divisor of \"hidden_size\" = {}", result.dim));
  config.require(result.dim / result.heads % 2 == 0,
                 "num_attention_heads",
                 format("heads of an even size (rotary positions turn pairs), not of {}",
                        result.dim / result.heads));
  config.require(result.heads % result.kv_heads == 0,
                 "num_key_value_heads",
                 format("a divisor of \"num_attention_heads\" = {}", result.heads));
  config.require(
      config.size("head_dim", result.dim / result.heads) == result.dim / result.heads,
      "head_dim",
      format("{}: \"hidden_size\" / \"num_attention_heads\"", result.dim / result.heads));
  config.require(config.text("hidden_act", "silu") == "silu", "hidden_act", "\"silu\"");
  config.require(!config.flag("attention_bias", false), "attention_bias", "false");
  config.require(!config.flag("mlp_bias", false), "mlp_bias", "false");
  config.require(!config.has("sliding_window") || !config.flag("use_sliding_window", true),
                 "sliding_window",
                 "null: attention that sees all that is before");
  take_rope(config, result);
  return result;
}

}  // namespace tessera
