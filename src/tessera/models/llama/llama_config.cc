#include <array>

#include "tessera/base/error.h"
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

std::string describe(const LlamaConfig& config) {
  return format(
      "{{\"family\":\"llama\",\"dim\":{},\"layers\":{},\"heads\":{},\"kv_heads\":{},\"ffn\":{},"
      "\"vocab\":{},\"tied\":{},\"rope_scaling\":{},\"rope_theta\":{},\"norm_eps\":{}}}",
      config.dim,
      config.layers,
      config.heads,
      config.kv_heads,
      config.ffn,
      config.vocab,
      config.tied,
      config.rope_scaling,
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

}  // namespace tessera
