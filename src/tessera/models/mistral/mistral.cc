#include "tessera/models/mistral/mistral.h"

#include <cstdint>

#include "tessera/models/decoder/decoder_family.h"
#include "tessera/models/llama/llama.h"

namespace tessera {
namespace {

constexpr DecoderConfig kDefaults = {.rope_theta = 1e6, .norm_eps = 1e-5};

DecoderConfig mistral(DecoderConfig sizes, std::int64_t head_dim) {
  sizes.head_dim = head_dim;
  sizes.rope_theta = kDefaults.rope_theta;
  sizes.norm_eps = kDefaults.norm_eps;
  return sizes;
}

void read_file(const HuggingFaceConfig& file, DecoderConfig& config) {
  file.require(!file.has("sliding_window"),
               "sliding_window",
               "null: attention that sees all that is before");
  take_plain_rope(file, config);
}

// Source: transformers' MistralConfig.
void write_file(HuggingFaceConfigText& text, const DecoderConfig& /*config*/) {
  text.add("sliding_window", "null");
}

const DecoderForm& mistral_form() {
  static const DecoderForm kForm = {
      .sizes = {"mistral",
                "mistral",
                decoder_sizes(),
                {{"7B", mistral(decoder_of(4096, 32, 32, 8, 14336, 32768), 128)},
                 {"nemo", mistral(decoder_of(5120, 40, 32, 8, 14336, 131072), 128)}},
                kDefaults},
      .write = llama,
      .model_type = "mistral",
      .architecture = "MistralForCausalLM",
      .read = read_file,
      .write_config = write_file};
  return kForm;
}

}  // namespace

ModelFamily mistral_family() {
  return decoder_family<mistral_form>();
}

}  // namespace tessera
