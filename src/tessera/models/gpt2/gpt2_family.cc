#include <array>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/models/gpt2/gpt2.h"

namespace tessera {
namespace {

constexpr std::string_view kName = "gpt2";

struct Flavor {
  std::string_view name;
  Gpt2Config config;
};

// GPT-2's vocabulary, padded to a multiple of 128.
constexpr Gpt2Config sized(std::int64_t dim, std::int64_t layers, std::int64_t heads) {
  return {.dim = dim,
          .layers = layers,
          .heads = heads,
          .ffn = 4 * dim,
          .vocab = 50257,
          .padded_vocab = 50304,
          .positions = 1024};
}

constexpr std::array<Flavor, 5> kFlavors = {{{"tiny",
                                              {.dim = 64,
                                               .layers = 2,
                                               .heads = 4,
                                               .ffn = 256,
                                               .vocab = 250,
                                               .padded_vocab = 256,
                                               .positions = 128}},
                                             {"124M", sized(768, 12, 12)},
                                             {"350M", sized(1024, 24, 16)},
                                             {"774M", sized(1280, 36, 20)},
                                             {"1558M", sized(1600, 48, 25)}}};

ModelSection section_of(ModelSection section, const Gpt2Config& config) {
  section.dim = config.dim;
  section.layers = config.layers;
  section.heads = config.heads;
  section.ffn = config.ffn;
  section.vocab = config.vocab;
  section.padded_vocab = config.padded_vocab;
  section.positions = config.positions;
  section.tied = true;
  section.norm_eps = config.norm_eps;
  return section;
}

ModelSection with_flavor(const ModelSection& section) {
  Gpt2Config flavor;
  for (const Flavor& known : kFlavors) {
    if (known.name == section.flavor) {
      flavor = known.config;
    }
  }
  ModelSection result = section;
  if (flavor.dim > 0) {
    result.dim = section.dim.value_or(flavor.dim);
    result.layers = section.layers.value_or(flavor.layers);
    result.heads = section.heads.value_or(flavor.heads);
    result.ffn = section.ffn.value_or(flavor.ffn);
    // The padding belongs to the flavor's own vocabulary.
    result.padded_vocab = section.padded_vocab ? section.padded_vocab
                          : section.vocab      ? std::nullopt
                                               : std::optional<std::int64_t>(flavor.padded_vocab);
    result.vocab = section.vocab.value_or(flavor.vocab);
    result.positions = section.positions.value_or(flavor.positions);
  }
  return result;
}

}  // namespace

Gpt2Config gpt2_config(const ModelSection& given) {
  refuse_key(given.kv_heads.has_value(), kName, "kv_heads");
  refuse_key(given.rope_scaling.has_value(), kName, "rope_scaling");
  refuse_key(given.rope_factor.has_value(), kName, "rope_factor");
  refuse_key(given.rope_theta.has_value(), kName, "rope_theta");
  refuse_key(given.rotary_fraction.has_value(), kName, "rotary_fraction");
  const ModelSection section = with_flavor(given);
  require_dims(section);
  TESSERA_REQUIRE(section.tied.value_or(true),
                  ErrorCode::kInvalidConfig,
                  "model.tied is false: the head of model.name = \"{}\" is its embedding",
                  kName);
  return {.dim = section.dim.value_or(0),
          .layers = section.layers.value_or(0),
          .heads = section.heads.value_or(0),
          .ffn = section.ffn.value_or(0),
          .vocab = section.vocab.value_or(0),
          .padded_vocab = vocab_rows(section),
          .positions = section.positions.value_or(1024),
          .norm_eps = section.norm_eps.value_or(Gpt2Config().norm_eps)};
}

ModelDescription describe_gpt2(const Gpt2Config& config) {
  return {.model = [config](GraphBuilder& builder,
                            const ModelInputs& inputs) { return gpt2(builder, config, inputs); },
          .vocab = config.vocab,
          .num_layers = config.layers,
          .num_heads = config.heads,
          .head_dim = config.dim / config.heads,
          .num_embedding_parameters = config.positions * config.dim,
          .json = format(
              "{{\"family\":\"gpt2\",\"dim\":{},\"layers\":{},\"heads\":{},\"ffn\":{},\"vocab\":{},"
              "\"padded_vocab\":{},\"positions\":{},\"norm_eps\":{}}}",
              config.dim,
              config.layers,
              config.heads,
              config.ffn,
              config.vocab,
              config.padded_vocab,
              config.positions,
              config.norm_eps)};
}

std::vector<HuggingFaceWeight> hugging_face_weights(const Gpt2Config& config) {
  std::vector<HuggingFaceWeight> weights;
  const auto add = [&](const std::string& name,
                       const std::vector<std::string>& parameters,
                       const std::vector<std::int64_t>& shape,
                       bool transposed = false) {
    HuggingFaceWeight weight{
        .name = "transformer." + name, .parts = {}, .shape = shape, .transposed = transposed};
    for (const std::string& parameter : parameters) {
      weight.parts.push_back({.parameter = parameter});
    }
    weights.push_back(std::move(weight));
  };
  const auto norm = [&](const std::string& name, const std::string& ours) {
    add(name + ".weight", {ours + ".weight"}, {config.dim});
    add(name + ".bias", {ours + ".bias"}, {config.dim});
  };
  // A "Conv1D": (inputs, outputs).
  const auto linear = [&](const std::string& name,
                          const std::vector<std::string>& ours,
                          std::int64_t inputs,
                          std::int64_t outputs) {
    std::vector<std::string> matrices;
    std::vector<std::string> biases;
    for (const std::string& one : ours) {
      matrices.push_back(one + ".weight");
      biases.push_back(one + ".bias");
    }
    add(name + ".weight", matrices, {inputs, outputs}, true);
    add(name + ".bias", biases, {outputs});
  };
  add("wte.weight", {"tok_embeddings.weight"}, {config.vocab, config.dim});
  add("wpe.weight", {"pos_embeddings.weight"}, {config.positions, config.dim});
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string theirs = format("h.{}.", layer);
    const std::string ours = format("layers.{}.", layer);
    norm(theirs + "ln_1", ours + "attention_norm");
    linear(theirs + "attn.c_attn",
           {ours + "attention.wq", ours + "attention.wk", ours + "attention.wv"},
           config.dim,
           3 * config.dim);
    linear(theirs + "attn.c_proj", {ours + "attention.wo"}, config.dim, config.dim);
    norm(theirs + "ln_2", ours + "ffn_norm");
    linear(theirs + "mlp.c_fc", {ours + "feed_forward.w1"}, config.dim, config.ffn);
    linear(theirs + "mlp.c_proj", {ours + "feed_forward.w2"}, config.ffn, config.dim);
  }
  norm("ln_f", "norm");
  return weights;
}

// Source: transformers' GPT2Config.
std::string hugging_face_config(const Gpt2Config& config, const HuggingFaceFacts& facts) {
  HuggingFaceConfigText text;
  text.text("activation_function", "gelu_new");
  text.add("architectures", "[\"GPT2LMHeadModel\"]");
  text.tokens("bos_token_id", facts.bos);
  text.tokens("eos_token_id", facts.eos);
  text.real("layer_norm_epsilon", config.norm_eps);
  text.text("model_type", "gpt2");
  text.number("n_embd", config.dim);
  text.number("n_head", config.heads);
  text.number("n_inner", config.ffn);
  text.number("n_layer", config.layers);
  text.number("n_positions", config.positions);
  text.flag("tie_word_embeddings", true);
  text.dtype(facts.dtype);
  text.number("vocab_size", config.vocab);
  return text.finish();
}

ModelSection gpt2_from_hugging_face(const HuggingFaceConfig& config) {
  const std::int64_t dim = config.size("n_embd");
  const std::int64_t vocab = config.size("vocab_size");
  const Gpt2Config result{.dim = dim,
                          .layers = config.layers("n_layer"),
                          .heads = config.size("n_head"),
                          .ffn = config.size("n_inner", 4 * dim),
                          .vocab = vocab,
                          .padded_vocab = vocab,
                          .positions = config.size("n_positions"),
                          .norm_eps = config.real("layer_norm_epsilon", 1e-5)};
  config.require(dim % result.heads == 0, "n_head", format("a divisor of \"n_embd\" = {}", dim));
  // transformers know these by the names that other families have, too.
  const auto require_same = [&](const char* key, std::int64_t value, const char* own) {
    config.require_same(key, static_cast<double>(value), own);
  };
  require_same("hidden_size", dim, "n_embd");
  require_same("num_hidden_layers", result.layers, "n_layer");
  require_same("num_attention_heads", result.heads, "n_head");
  require_same("max_position_embeddings", result.positions, "n_positions");
  require_same("num_key_value_heads", result.heads, "n_head");
  require_same("head_dim", dim / result.heads, "n_head");
  const std::string activation = config.text("activation_function", "gelu_new");
  config.require(activation == "gelu_new" || activation == "gelu_pytorch_tanh",
                 "activation_function",
                 "\"gelu_new\"");
  config.require(config.flag("tie_word_embeddings", true), "tie_word_embeddings", "true");
  config.require(config.flag("scale_attn_weights", true), "scale_attn_weights", "true");
  config.require(!config.flag("scale_attn_by_inverse_layer_idx", false),
                 "scale_attn_by_inverse_layer_idx",
                 "false");
  return section_of({.name = std::string(kName)}, result);
}

ModelFamily gpt2_family() {
  ModelFamily family{
      .name = kName,
      .described = "gpt2",
      .flavors = {},
      .resolve =
          [](const ModelSection& section) { return section_of(section, gpt2_config(section)); },
      .describe = [](const ModelSection& section) { return describe_gpt2(gpt2_config(section)); },
      .model_types = {"gpt2"},
      .weight_prefix = "transformer.",
      .from_hugging_face = gpt2_from_hugging_face,
      .hugging_face_config =
          [](const ModelSection& section, const HuggingFaceFacts& facts) {
            return hugging_face_config(gpt2_config(section), facts);
          },
      .hugging_face_weights =
          [](const ModelSection& section) { return hugging_face_weights(gpt2_config(section)); },
      .is_extra =
          [](const ModelSection& /*section*/, std::string_view name) {
            return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
                   name == "lm_head.weight";
          }};
  for (const Flavor& flavor : kFlavors) {
    family.flavors.push_back(flavor.name);
  }
  return family;
}

}  // namespace tessera
