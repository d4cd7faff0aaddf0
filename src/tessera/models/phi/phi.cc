#include "tessera/models/phi/phi.h"

#include <cstdint>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/models/decoder/decoder_family.h"
#include "tessera/models/llama/llama.h"

namespace tessera {
namespace {

const DecoderConfig kDefaults = {.rope_theta = 10000.0, .norm_eps = 1e-5};

DecoderConfig mini() {
  DecoderConfig config = decoder_of(3072, 32, 32, 32, 8192, 32064);
  config.rope_theta = kDefaults.rope_theta;
  config.window = 2047;
  return config;
}

void read_file(const HuggingFaceConfig& file, DecoderConfig& config) {
  take_window(file, config);
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const bool has_original = file.has(kOriginal);  // also where nothing is scaled
  take_rope(file, config);
  const HuggingFaceRope rope = read_rope(file, {});
  file.require(
      rope.type == "default" || config.has_long_rope(), rope.type_key, "\"longrope\" or nothing");
  // Absent it is 4096 to transformers, whatever the object of the scaling says.
  file.require(has_original || !config.has_long_rope(), kOriginal, "the length of training");
}

// Its files have LongRoPE alone.
void check(const DecoderConfig& config) {
  for (const auto& [key, factor] : {std::pair{"linear", config.rope_linear_factor},
                                    {"dynamic", config.rope_dynamic_factor},
                                    {"yarn", config.rope_yarn_factor}}) {
    TESSERA_REQUIRE(factor == 1.0,
                    ErrorCode::kInvalidConfig,
                    "model.rope_{}_factor = {}, expected 1: phi3's positions are scaled by "
                    "model.rope_long_factors",
                    key,
                    factor);
  }
}

// Source: transformers' Phi3Config.
void write_file(HuggingFaceConfigText& text, const DecoderConfig& config) {
  text.flag("attention_bias", false);
  text.add("pad_token_id", "null");  // else 32000, also where there are fewer ids
  text.add("rope_scaling", rope_scaling_json(config));
  write_window(text, config);
}

const DecoderForm& phi3_form() {
  static const DecoderForm kForm = {.sizes = {"phi3",
                                              "phi3",
                                              decoder_sizes({window_size()}, {.norm_eps = 1e-5}),
                                              {{"mini-4k", mini()}},
                                              kDefaults},
                                    .write = llama,
                                    .model_type = "phi3",
                                    .architecture = "Phi3ForCausalLM",
                                    .fused_files = true,
                                    .check = check,
                                    .read = read_file,
                                    .write_config = write_file};
  return kForm;
}

}  // namespace

ModelFamily phi3_family() {
  return decoder_family<phi3_form>();
}

}  // namespace tessera
