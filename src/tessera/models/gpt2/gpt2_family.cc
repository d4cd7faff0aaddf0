#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/models/family_sizes.h"
#include "tessera/models/gpt2/gpt2.h"

namespace tessera {
namespace {

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

const FamilySizes<Gpt2Config>& sizes() {
  using C = Gpt2Config;
  static const FamilySizes<C> kTable(
      "gpt2",
      "gpt2",
      {{.key = "dim", .member = &C::dim, .file_key = "n_embd"},
       {.key = "layers", .member = &C::layers, .file_key = "n_layer"},
       {.key = "heads", .member = &C::heads, .file_key = "n_head"},
       {.key = "ffn",
        .member = &C::ffn,
        .file_key = "n_inner",
        .file = FamilySize<C>::File::kWritten},
       {.key = "vocab", .member = &C::vocab, .file_key = "vocab_size"},
       {.key = "padded_vocab", .member = &C::padded_vocab, .file = FamilySize<C>::File::kNowhere},
       {.key = "positions", .member = &C::positions, .file_key = "n_positions"},
       {.key = "norm_eps",
        .member = &C::norm_eps,
        .file_key = "layer_norm_epsilon",
        .file_default = 1e-5},
       {.key = "bias",
        .member = &C::bias,
        .file = FamilySize<C>::File::kNowhere,
        .is_usual = [](const C& c) { return c.bias; }},
       {.key = "alibi",
        .member = &C::alibi,
        .file = FamilySize<C>::File::kNowhere,
        .is_usual = [](const C& c) { return !c.alibi; }},
       {.key = "squared_relu",
        .member = &C::squared_relu,
        .file = FamilySize<C>::File::kNowhere,
        .is_usual = [](const C& c) { return !c.squared_relu; }}},
      {{"tiny",
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
       {"1558M", sized(1600, 48, 25)}},
      {.positions = 1024});
  return kTable;
}

// Its head is the embedding.
ModelSection section_of(const ModelSection& section, const Gpt2Config& config) {
  ModelSection result = sizes().section(section, config);
  result.tied = true;
  return result;
}

}  // namespace

Gpt2Config gpt2_config(const ModelSection& given) {
  const Gpt2Config config = sizes().config(given, {"tied"});
  require_dims(sizes().section(given, config));
  TESSERA_REQUIRE(given.tied.value_or(true),
                  ErrorCode::kInvalidConfig,
                  "model.tied is false: the head of model.name = \"{}\" is its embedding",
                  sizes().name());
  require_rows(config.padded_vocab, config.vocab);
  return config;
}

ModelDescription describe_gpt2(const Gpt2Config& config) {
  return {.model = [config](GraphBuilder& builder,
                            const ModelInputs& inputs) { return gpt2(builder, config, inputs); },
          .vocab = config.vocab,
          .num_layers = config.layers,
          .num_heads = config.heads,
          .head_dim = config.dim / config.heads,
          .num_embedding_parameters = config.alibi ? 0 : config.positions * config.dim,
          .json = sizes().describe(config)};
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
    if (config.bias) {
      add(name + ".bias", {ours + ".bias"}, {config.dim});
    }
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
    if (config.bias) {
      add(name + ".bias", biases, {outputs});
    }
  };
  add("wte.weight", {"tok_embeddings.weight"}, {config.vocab, config.dim});
  if (!config.alibi) {
    add("wpe.weight", {"pos_embeddings.weight"}, {config.positions, config.dim});
  }
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
  TESSERA_REQUIRE(config.bias && !config.alibi && !config.squared_relu,
                  ErrorCode::kUnsupported,
                  "transformers' GPT2LMHeadModel has biases, learned positions and GELU: expected "
                  "model.bias = true, model.alibi = false and model.squared_relu = false, found "
                  "{}, {} and {}",
                  config.bias,
                  config.alibi,
                  config.squared_relu);
  HuggingFaceConfigText text;
  text.text("activation_function", "gelu_new");
  text.add("architectures", "[\"GPT2LMHeadModel\"]");
  text.tokens("bos_token_id", facts.bos);
  text.tokens("eos_token_id", facts.eos);
  text.text("model_type", "gpt2");
  text.flag("tie_word_embeddings", true);
  text.dtype(facts.dtype);
  sizes().write(text, config);
  return text.finish();
}

ModelSection gpt2_from_hugging_face(const HuggingFaceConfig& config) {
  Gpt2Config result = sizes().read(config);
  const std::int64_t dim = result.dim;
  result.ffn = config.size("n_inner", 4 * dim);
  result.padded_vocab = result.vocab;
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
  for (const ModelPart part : {ModelPart::kRotary, ModelPart::kRmsNorm, ModelPart::kGate}) {
    config.require_lacks(part);
  }
  config.require(!config.flag("scale_attn_by_inverse_layer_idx", false),
                 "scale_attn_by_inverse_layer_idx",
                 "false");
  return section_of({.name = std::string(sizes().name())}, result);
}

ModelFamily gpt2_family() {
  return {
      .name = sizes().name(),
      .described = sizes().described(),
      .flavors = sizes().flavor_names(),
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
}

}  // namespace tessera
