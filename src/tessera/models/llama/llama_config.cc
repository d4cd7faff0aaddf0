#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/models/llama/hugging_face.h"
#include "tessera/models/llama/llama.h"

namespace tessera {
namespace {

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

}  // namespace

// The factor is named only where it is not Llama 3.1's, so that older checkpoints stay readable.
const FamilySizes<LlamaConfig>& llama_sizes() {
  using C = LlamaConfig;
  using enum FamilySize<C>::File;
  constexpr std::int64_t kVocab = 128256;
  static const FamilySizes<C> kTable(
      "llama3",
      "llama",
      {{.key = "dim", .member = &C::dim, .file_key = "hidden_size"},
       {.key = "layers", .member = &C::layers, .file_key = "num_hidden_layers"},
       {.key = "heads", .member = &C::heads, .file_key = "num_attention_heads"},
       {.key = "kv_heads",
        .member = &C::kv_heads,
        .file_key = "num_key_value_heads",
        .file = kWritten},
       {.key = "ffn", .member = &C::ffn, .file_key = "intermediate_size"},
       {.key = "vocab", .member = &C::vocab, .file_key = "vocab_size"},
       {.key = "tied", .member = &C::tied, .file_key = "tie_word_embeddings", .file_default = 0},
       {.key = "rope_scaling", .member = &C::rope_scaling, .file = kNowhere},
       {.key = "rope_factor", .member = &C::rope_factor, .file = kNowhere, .is_usual = true},
       {.key = "rope_theta", .member = &C::rope_theta, .file_key = "rope_theta", .file = kWritten},
       // What the first Llamas leave out.
       {.key = "norm_eps",
        .member = &C::norm_eps,
        .file_key = "rms_norm_eps",
        .file_default = 1e-6}},
      {{"debug", sized({256, 6, 16, 16, 768}, 2048)},
       {"1B", scaled(tied(sized({2048, 16, 32, 8, 8192}, kVocab)))},
       {"3B", scaled(tied(sized({3072, 28, 24, 8, 8192}, kVocab)))},
       {"8B", scaled(sized({4096, 32, 32, 8, 14336}, kVocab))},
       {"70B", scaled(sized({8192, 80, 64, 8, 28672}, kVocab))},
       {"405B", scaled(sized({16384, 126, 128, 8, 53248}, kVocab))}});
  return kTable;
}

LlamaConfig llama_flavor(std::string_view flavor) {
  const std::vector<std::string_view> names = llama_sizes().flavor_names();
  TESSERA_CHECK(std::ranges::count(names, flavor) == 1, "no Llama is called {}", flavor);
  return llama_sizes().flavor(flavor);
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
          .json = llama_sizes().describe(config)};
}

LlamaConfig llama_config(const ModelSection& section) {
  LlamaConfig result = llama_sizes().config(section, {});
  const double usual_factor = LlamaConfig().rope_factor;
  result.kv_heads = result.kv_heads > 0 ? result.kv_heads : result.heads;
  TESSERA_REQUIRE(result.rope_scaling || result.rope_factor == usual_factor,
                  ErrorCode::kInvalidConfig,
                  "model.rope_factor = {} has no use without model.rope_scaling = true",
                  result.rope_factor);
  validate(result);
  return result;
}

ModelFamily llama_family() {
  return {
      .name = llama_sizes().name(),
      .described = llama_sizes().described(),
      .flavors = llama_sizes().flavor_names(),
      .resolve =
          [](const ModelSection& section) {
            return llama_sizes().section(section, llama_config(section));
          },
      .describe = [](const ModelSection& section) { return describe_llama(llama_config(section)); },
      .model_types = {"llama"},
      .weight_prefix = "model.",
      .from_hugging_face =
          [](const HuggingFaceConfig& config) {
            return llama_sizes().section({.name = std::string(llama_sizes().name())},
                                         llama_from_hugging_face(config));
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
