#include <algorithm>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/models/llama/llama.h"

namespace tessera {
namespace {

constexpr std::int64_t kVocab = 128256;

LlamaConfig tied(LlamaConfig config) {
  config.tied = true;
  return config;
}

// Llama 3.1 and 3.2 stretch long wavelengths.
LlamaConfig scaled(LlamaConfig config) {
  config.rope_scaling = true;
  return config;
}

// The factor is named only where it is not Llama 3.1's, so that older checkpoints stay readable.
FamilySizes<LlamaConfig> sizes() {
  using C = LlamaConfig;
  using enum FamilySize<C>::File;
  return {
      "llama3",
      "llama",
      decoder_sizes({attention_bias_size(),
                     {.key = "rope_scaling", .member = &C::rope_scaling, .file = kNowhere},
                     {.key = "rope_factor",
                      .member = &C::rope_factor,
                      .file = kNowhere,
                      .is_usual = [](const C& c) { return c.rope_factor == C().rope_factor; }}}),
      {{"debug", decoder_of(256, 6, 16, 16, 768, 2048)},
       {"1B", scaled(tied(decoder_of(2048, 16, 32, 8, 8192, kVocab)))},
       {"3B", scaled(tied(decoder_of(3072, 28, 24, 8, 8192, kVocab)))},
       {"8B", scaled(decoder_of(4096, 32, 32, 8, 14336, kVocab))},
       {"70B", scaled(decoder_of(8192, 80, 64, 8, 28672, kVocab))},
       {"405B", scaled(decoder_of(16384, 126, 128, 8, 53248, kVocab))}}};
}

void check(const LlamaConfig& config) {
  TESSERA_REQUIRE(config.rope_scaling || config.rope_factor == LlamaConfig().rope_factor,
                  ErrorCode::kInvalidConfig,
                  "model.rope_factor = {} has no use without model.rope_scaling = true",
                  config.rope_factor);
}

void read_file(const HuggingFaceConfig& config, LlamaConfig& result) {
  config.require(!config.flag("mlp_bias", false), "mlp_bias", "false");
  config.require(!config.has("sliding_window") || !config.flag("use_sliding_window", true),
                 "sliding_window",
                 "null: attention that sees all that is before");
  take_rope(config, result, {.llama3 = true});
}

// Source: transformers' LlamaConfig.
void write_file(HuggingFaceConfigText& text, const LlamaConfig& config) {
  text.flag("mlp_bias", false);
  text.add("rope_scaling", rope_scaling_json(config));
}

}  // namespace

const DecoderForm& llama_form() {
  static const DecoderForm kForm = {.sizes = sizes(),
                                    .write = llama,
                                    .model_type = "llama",
                                    .architecture = "LlamaForCausalLM",
                                    .check = check,
                                    .read = read_file,
                                    .write_config = write_file};
  return kForm;
}

LlamaConfig llama_flavor(std::string_view flavor) {
  const std::vector<std::string_view> names = llama_form().sizes.flavor_names();
  TESSERA_CHECK(std::ranges::count(names, flavor) == 1, "no Llama is called {}", flavor);
  return llama_form().sizes.flavor(flavor);
}

ModelDescription describe_llama(const LlamaConfig& config) {
  return describe_decoder(llama_form(), config);
}

LlamaConfig llama_config(const ModelSection& section) {
  return decoder_config(llama_form(), section);
}

ModelFamily llama_family() {
  return decoder_family<llama_form>();
}

}  // namespace tessera
