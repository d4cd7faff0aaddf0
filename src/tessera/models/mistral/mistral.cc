#include "tessera/models/mistral/mistral.h"

#include <cstdint>

#include "tessera/models/decoder/decoder_family.h"
#include "tessera/models/llama/llama.h"

namespace tessera {
namespace {

constexpr DecoderConfig kDefaults = {.rope_theta = 1e6, .norm_eps = 1e-5};

DecoderConfig mistral(DecoderConfig sizes, std::int64_t head_dim = 0) {
  sizes.head_dim = head_dim;
  sizes.rope_theta = kDefaults.rope_theta;
  sizes.norm_eps = kDefaults.norm_eps;
  return sizes;
}

// 7B v0.1, the one with a window.
DecoderConfig first() {
  DecoderConfig config = mistral(decoder_of(4096, 32, 32, 8, 14336, 32000));
  config.rope_theta = 10000.0;
  config.window = 4096;
  return config;
}

void read_file(const HuggingFaceConfig& file, DecoderConfig& config) {
  take_window(file, config, 4096);
  take_rope(file, config);
}

// Source: transformers' MistralConfig.
void write_file(HuggingFaceConfigText& text, const DecoderConfig& config) {
  text.add("rope_scaling", rope_scaling_json(config));
  write_window(text, config);
}

const DecoderForm& mistral_form() {
  static const DecoderForm kForm = {
      .sizes = {"mistral",
                "mistral",
                decoder_sizes({window_size()}),
                {{"7B-v0.1", first()},
                 {"7B", mistral(decoder_of(4096, 32, 32, 8, 14336, 32768))},
                 {"nemo", mistral(decoder_of(5120, 40, 32, 8, 14336, 131072), 128)}},
                kDefaults},
      .write = llama,
      .model_type = "mistral",
      .architecture = "MistralForCausalLM",
      .file_kv_heads = 8,
      .read = read_file,
      .write_config = write_file};
  return kForm;
}

}  // namespace

ModelFamily mistral_family() {
  return decoder_family<mistral_form>();
}

}  // namespace tessera
