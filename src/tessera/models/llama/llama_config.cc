#include <array>

#include "tessera/base/error.h"
#include "tessera/models/llama/hugging_face.h"
#include "tessera/models/llama/llama.h"

namespace tessera {
namespace {

struct Flavor {
  std::string_view name;
  LlamaConfig config;
};

LlamaConfig sized(std::array<std::int64_t, 5> sizes, std::int64_t vocab) {
  return {.dim = sizes[0],
          .layers = sizes[1],
          .heads = sizes[2],
          .kv_heads = sizes[3],
          .ffn = sizes[4],
          .vocab = vocab};
}

LlamaConfig tied(LlamaConfig config) {
  config.tied = true;
  return config;
}

// Llama 3.1 and 3.2 stretch long wavelengths.
LlamaConfig scaled(LlamaConfig config) {
  config.rope_scaling = true;
  return config;
}

const std::array<Flavor, 6>& flavors() {
  constexpr std::int64_t kVocab = 128256;
  static const std::array<Flavor, 6> kFlavors = {
      {{"debug", sized({256, 6, 16, 16, 768}, 2048)},
       {"1B", scaled(tied(sized({2048, 16, 32, 8, 8192}, kVocab)))},
       {"3B", scaled(tied(sized({3072, 28, 24, 8, 8192}, kVocab)))},
       {"8B", scaled(sized({4096, 32, 32, 8, 14336}, kVocab))},
       {"70B", scaled(sized({8192, 80, 64, 8, 28672}, kVocab))},
       {"405B", scaled(sized({16384, 126, 128, 8, 53248}, kVocab))}}};
  return kFlavors;
}

// The factor is named only where it is not Llama 3.1's, so that older checkpoints stay readable.
std::string describe(const LlamaConfig& config) {
  return format(
      "{{\"family\":\"llama\",\"dim\":{},\"layers\":{},\"heads\":{},\"kv_heads\":{},\"ffn\":{},"
      "\"vocab\":{},\"tied\":{},\"rope_scaling\":{},{}\"rope_theta\":{},\"norm_eps\":{}}}",
      config.dim,
      config.layers,
      config.heads,
      config.kv_heads,
      config.ffn,
      config.vocab,
      config.tied,
      config.rope_scaling,
      config.rope_scaling && config.rope_factor != LlamaConfig().rope_factor
          ? format("\"rope_factor\":{},", config.rope_factor)
          : "",
      config.rope_theta,
      config.norm_eps);
}

}  // namespace

std::optional<LlamaConfig> llama_flavor(std::string_view flavor) {
  for (const Flavor& known : flavors()) {
    if (known.name == flavor) {
      return known.config;
    }
  }
  return std::nullopt;
}

std::vector<std::string_view> llama_flavors() {
  std::vector<std::string_view> names;
  for (const Flavor& known : flavors()) {
    names.push_back(known.name);
  }
  return names;
}

void validate(const LlamaConfig& config) {
  for (const auto& [name, size] : {std::pair{"dim", config.dim},
                                   {"layers", config.layers},
                                   {"heads", config.heads},
                                   {"kv_heads", config.kv_heads},
                                   {"ffn", config.ffn},
                                   {"vocab", config.vocab}}) {
    TESSERA_REQUIRE(size > 0,
                    ErrorCode::kInvalidConfig,
                    "model.{} is {}, expected a positive number (set it, or a model.flavor)",
                    name,
                    size);
  }
  TESSERA_REQUIRE(config.dim % config.heads == 0,
                  ErrorCode::kInvalidConfig,
                  "model.heads = {} does not divide model.dim = {}",
                  config.heads,
                  config.dim);
  TESSERA_REQUIRE(config.heads % config.kv_heads == 0,
                  ErrorCode::kInvalidConfig,
                  "model.kv_heads = {} does not divide model.heads = {}",
                  config.kv_heads,
                  config.heads);
  TESSERA_REQUIRE(config.dim / config.heads % 2 == 0,
                  ErrorCode::kInvalidConfig,
                  "a head of model.dim / model.heads = {} is odd; rotary positions turn pairs",
                  config.dim / config.heads);
}

ModelDescription describe_llama(const LlamaConfig& config) {
  validate(config);
  return {.model = [config](GraphBuilder& builder,
                            const ModelInputs& inputs) { return llama(builder, config, inputs); },
          .vocab = config.vocab,
          .num_layers = config.layers,
          .num_heads = config.heads,
          .head_dim = config.dim / config.heads,
          .num_embedding_parameters = config.tied ? 0 : config.vocab * config.dim,
          .json = describe(config)};
}

LlamaConfig llama_config(const ModelSection& section) {
  constexpr std::string_view kName = "llama3";
  refuse_key(section.padded_vocab.has_value(), kName, "padded_vocab");
  refuse_key(section.positions.has_value(), kName, "positions");
  refuse_key(section.rotary_fraction.has_value(), kName, "rotary_fraction");
  LlamaConfig result = llama_flavor(section.flavor).value_or(LlamaConfig());
  const double usual_factor = result.rope_factor;
  result.dim = section.dim.value_or(result.dim);
  result.layers = section.layers.value_or(result.layers);
  result.heads = section.heads.value_or(result.heads);
  result.kv_heads = section.kv_heads.value_or(result.kv_heads > 0 ? result.kv_heads : result.heads);
  result.ffn = section.ffn.value_or(result.ffn);
  result.vocab = section.vocab.value_or(result.vocab);
  result.tied = section.tied.value_or(result.tied);
  result.rope_scaling = section.rope_scaling.value_or(result.rope_scaling);
  result.rope_factor = section.rope_factor.value_or(result.rope_factor);
  result.rope_theta = section.rope_theta.value_or(result.rope_theta);
  result.norm_eps = section.norm_eps.value_or(result.norm_eps);
  TESSERA_REQUIRE(result.rope_scaling || result.rope_factor == usual_factor,
                  ErrorCode::kInvalidConfig,
                  "model.rope_factor = {} has no use without model.rope_scaling = true",
                  result.rope_factor);
  validate(result);
  return result;
}

ModelSection llama_section(ModelSection section, const LlamaConfig& config) {
  section.dim = config.dim;
  section.layers = config.layers;
  section.heads = config.heads;
  section.kv_heads = config.kv_heads;
  section.ffn = config.ffn;
  section.vocab = config.vocab;
  section.tied = config.tied;
  section.rope_scaling = config.rope_scaling;
  section.rope_factor = config.rope_factor;
  section.rope_theta = config.rope_theta;
  section.norm_eps = config.norm_eps;
  return section;
}

ModelFamily llama_family() {
  return {
      .name = "llama3",
      .described = "llama",
      .flavors = llama_flavors(),
      .resolve =
          [](const ModelSection& section) { return llama_section(section, llama_config(section)); },
      .describe = [](const ModelSection& section) { return describe_llama(llama_config(section)); },
      .model_types = {"llama"},
      .weight_prefix = "model.",
      .from_hugging_face =
          [](const HuggingFaceConfig& config) {
            return llama_section({.name = "llama3"}, llama_from_hugging_face(config));
          },
      .hugging_face_config =
          [](const ModelSection& section, const HuggingFaceFacts& facts) {
            return hugging_face_config(llama_config(section), facts);
          },
      .hugging_face_weights =
          [](const ModelSection& section) { return hugging_face_weights(llama_config(section)); },
      .is_extra =
          [](const ModelSection& section, std::string_view name) {
            return name.ends_with(".rotary_emb.inv_freq") ||
                   (section.tied.value_or(false) && name == "lm_head.weight");
          }};
}

}  // namespace tessera
