#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/models/family_sizes.h"
#include "tessera/models/hugging_face_rope.h"
#include "tessera/models/neox/neox.h"

namespace tessera {
namespace {

// The vocabulary of 20B is that of its published tokenizer, added tokens included.
const FamilySizes<NeoxConfig>& sizes() {
  using C = NeoxConfig;
  using enum FamilySize<C>::File;
  static const FamilySizes<C> kTable(
      "neox",
      "neox",
      {{.key = "dim", .member = &C::dim, .file_key = "hidden_size"},
       {.key = "layers", .member = &C::layers, .file_key = "num_hidden_layers"},
       {.key = "heads", .member = &C::heads, .file_key = "num_attention_heads"},
       {.key = "ffn", .member = &C::ffn, .file_key = "intermediate_size"},
       {.key = "vocab", .member = &C::vocab, .file_key = "vocab_size"},
       {.key = "padded_vocab", .member = &C::padded_vocab, .file = kNowhere},
       {.key = "rotary_fraction",
        .member = &C::rotary_fraction,
        .file_key = "rotary_pct",
        .file = kWritten},
       {.key = "rope_theta",
        .member = &C::rope_theta,
        .file_key = "rotary_emb_base",
        .file = kWritten},
       {.key = "norm_eps",
        .member = &C::norm_eps,
        .file_key = "layer_norm_eps",
        .file_default = 1e-5},
       {.key = "bias",
        .member = &C::bias,
        .file = kNowhere,
        .is_usual = [](const C& c) { return c.bias; }},
       {.key = "squared_relu",
        .member = &C::squared_relu,
        .file = kNowhere,
        .is_usual = [](const C& c) { return !c.squared_relu; }},
       {.key = "exact_gelu",
        .member = &C::exact_gelu,
        .file = kNowhere,
        .is_usual = [](const C& c) { return !c.exact_gelu; }},
       {.key = "parallel_residual",
        .member = &C::parallel_residual,
        .file_key = "use_parallel_residual",
        .file_default = 1,
        .is_usual = [](const C& c) { return c.parallel_residual; }}},
      {{"tiny",
        {.dim = 64, .layers = 2, .heads = 4, .ffn = 256, .vocab = 250, .padded_vocab = 256}},
       {"20B",
        {.dim = 6144,
         .layers = 44,
         .heads = 64,
         .ffn = 24576,
         .vocab = 50277,
         .padded_vocab = 50432}}});
  return kTable;
}

// It has a head of its own.
ModelSection section_of(const ModelSection& section, const NeoxConfig& config) {
  ModelSection result = sizes().section(section, config);
  result.tied = false;
  return result;
}

}  // namespace

NeoxConfig neox_config(const ModelSection& given) {
  const NeoxConfig config = sizes().config(given, {"tied"});
  require_dims(sizes().section(given, config));
  TESSERA_REQUIRE(!given.tied.value_or(false),
                  ErrorCode::kInvalidConfig,
                  "model.tied is true: model.name = \"{}\" has a head of its own",
                  sizes().name());
  require_rows(config.padded_vocab, config.vocab);
  TESSERA_REQUIRE(rotary_dim(config) > 0 && rotary_dim(config) % 2 == 0,
                  ErrorCode::kInvalidConfig,
                  "model.rotary_fraction = {} of heads of {} turns {} elements, expected an even "
                  "number",
                  config.rotary_fraction,
                  config.dim / config.heads,
                  rotary_dim(config));
  return config;
}

ModelDescription describe_neox(const NeoxConfig& config) {
  return {.model = [config](GraphBuilder& builder,
                            const ModelInputs& inputs) { return neox(builder, config, inputs); },
          .vocab = config.vocab,
          .num_layers = config.layers,
          .num_heads = config.heads,
          .head_dim = config.dim / config.heads,
          .num_embedding_parameters = config.padded_vocab * config.dim,
          .json = sizes().describe(config)};
}

std::vector<HuggingFaceWeight> hugging_face_weights(const NeoxConfig& config) {
  const std::int64_t head = config.dim / config.heads;
  std::vector<HuggingFaceWeight> weights;
  const auto add = [&](const std::string& name,
                       const std::string& parameter,
                       const std::vector<std::int64_t>& shape) {
    weights.push_back({.name = name, .parts = {{.parameter = parameter}}, .shape = shape});
  };
  // A matrix or a norm, and its bias.
  const auto biased = [&](const std::string& name,
                          const std::string& ours,
                          const std::vector<std::int64_t>& shape) {
    add(name + ".weight", ours + ".weight", shape);
    if (config.bias) {
      add(name + ".bias", ours + ".bias", {shape[0]});
    }
  };
  add("gpt_neox.embed_in.weight", "tok_embeddings.weight", {config.vocab, config.dim});
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string theirs = format("gpt_neox.layers.{}.", layer);
    const std::string ours = format("layers.{}.", layer);
    biased(theirs + "input_layernorm", ours + "attention_norm", {config.dim});
    biased(theirs + "post_attention_layernorm", ours + "ffn_norm", {config.dim});
    for (const std::string kind : {"weight", "bias"}) {
      if (kind == "bias" && !config.bias) {
        continue;
      }
      HuggingFaceWeight fused{.name = format("{}attention.query_key_value.{}", theirs, kind),
                              .parts = {},
                              .shape = {3 * config.dim},
                              .head_rows = head};
      for (const char* which : {"wq", "wk", "wv"}) {
        const bool turns = std::string_view(which) != "wv";
        fused.parts.push_back({.parameter = format("{}attention.{}.{}", ours, which, kind),
                               .rotary_rows = turns ? rotary_dim(config) : 0});
      }
      if (kind == "weight") {
        fused.shape.push_back(config.dim);
      }
      weights.push_back(std::move(fused));
    }
    biased(theirs + "attention.dense", ours + "attention.wo", {config.dim, config.dim});
    biased(theirs + "mlp.dense_h_to_4h", ours + "feed_forward.w1", {config.ffn, config.dim});
    biased(theirs + "mlp.dense_4h_to_h", ours + "feed_forward.w2", {config.dim, config.ffn});
  }
  biased("gpt_neox.final_layer_norm", "norm", {config.dim});
  add("embed_out.weight", "output.weight", {config.vocab, config.dim});
  return weights;
}

// Source: transformers' GPTNeoXConfig.
std::string hugging_face_config(const NeoxConfig& config, const HuggingFaceFacts& facts) {
  TESSERA_REQUIRE(
      config.bias && !config.squared_relu,
      ErrorCode::kUnsupported,
      "transformers' GPTNeoXForCausalLM has biases and GELU: expected model.bias = true "
      "and model.squared_relu = false, found {} and {}",
      config.bias,
      config.squared_relu);
  HuggingFaceConfigText text;
  text.add("architectures", "[\"GPTNeoXForCausalLM\"]");
  text.flag("attention_bias", true);
  text.tokens("bos_token_id", facts.bos);
  text.tokens("eos_token_id", facts.eos);
  text.text("hidden_act", config.exact_gelu ? "gelu" : "gelu_fast");
  text.number("max_position_embeddings", facts.sequence_length);
  text.text("model_type", "gpt_neox");
  text.flag("tie_word_embeddings", false);
  text.dtype(facts.dtype);
  sizes().write(text, config);
  return text.finish();
}

ModelSection neox_from_hugging_face(const HuggingFaceConfig& config) {
  const HuggingFaceRope rope = read_rope(
      config, {.theta = "rotary_emb_base", .fraction = "rotary_pct", .default_fraction = 0.25});
  NeoxConfig result = sizes().read(config);
  result.padded_vocab = result.vocab;
  result.rotary_fraction = rope.fraction;
  result.rope_theta = rope.theta;
  config.require(result.dim % result.heads == 0,
                 "num_attention_heads",
                 format("a divisor of \"hidden_size\" = {}", result.dim));
  const std::int64_t head_dim = result.dim / result.heads;
  config.require_same("head_dim", static_cast<double>(head_dim), "num_attention_heads");
  config.require_same(
      "num_key_value_heads", static_cast<double>(result.heads), "num_attention_heads");
  config.require(
      result.rotary_fraction <= 1.0 && rotary_dim(result) > 0 && rotary_dim(result) % 2 == 0,
      rope.fraction_key,
      "a part of each head with an even number of elements");
  config.require(rope.type == "default", rope.type_key, "\"default\" or nothing");
  const std::string activation = config.text("hidden_act", "gelu");
  result.exact_gelu = activation == "gelu";
  config.require(result.exact_gelu || activation == "gelu_fast" || activation == "gelu_new" ||
                     activation == "gelu_pytorch_tanh",
                 "hidden_act",
                 "\"gelu\", or the tanh form, \"gelu_fast\" or \"gelu_new\"");
  config.require(config.flag("attention_bias", true), "attention_bias", "true");
  config.require_lacks(ModelPart::kRmsNorm);
  config.require_lacks(ModelPart::kGate);
  config.require(!config.flag("tie_word_embeddings", false), "tie_word_embeddings", "false");
  return section_of({.name = std::string(sizes().name())}, result);
}

ModelFamily neox_family() {
  return {
      .name = sizes().name(),
      .described = sizes().described(),
      .flavors = sizes().flavor_names(),
      .resolve =
          [](const ModelSection& section) { return section_of(section, neox_config(section)); },
      .describe = [](const ModelSection& section) { return describe_neox(neox_config(section)); },
      .model_types = {"gpt_neox"},
      .weight_prefix = "gpt_neox.",
      .from_hugging_face = neox_from_hugging_face,
      .hugging_face_config =
          [](const ModelSection& section, const HuggingFaceFacts& facts) {
            return hugging_face_config(neox_config(section), facts);
          },
      .hugging_face_weights =
          [](const ModelSection& section) { return hugging_face_weights(neox_config(section)); },
      .is_extra =
          [](const ModelSection& /*section*/, std::string_view name) {
            return name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias") ||
                   name.ends_with(".rotary_emb.inv_freq");
          }};
}

}  // namespace tessera
