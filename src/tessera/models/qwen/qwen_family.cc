#include <algorithm>
#include <cstdint>
#include <string>

#include "tessera/models/qwen/qwen.h"

namespace tessera {
namespace {

// What Qwen2 and later have in common; the numbers of the smallest.
constexpr DecoderConfig kDefaults = {.rope_theta = 1e6, .norm_eps = 1e-6};

constexpr std::int64_t kVocab = 151936;

// Sizes as kDefaults have the rest.
DecoderConfig qwen(DecoderConfig sizes, bool tied, std::int64_t head_dim = 0) {
  sizes.tied = tied;
  sizes.head_dim = head_dim;
  sizes.rope_theta = kDefaults.rope_theta;
  sizes.norm_eps = kDefaults.norm_eps;
  return sizes;
}

void read_file(const HuggingFaceConfig& file, DecoderConfig& config) {
  static_cast<void>(file.has("sliding_window"));  // without effect where the flag is false
  file.require(!file.flag("use_sliding_window", false),
               "use_sliding_window",
               "false: attention that sees all that is before");
  file.require(
      std::ranges::all_of(file.texts("layer_types"),
                          [](const std::string& type) { return type == "full_attention"; }),
      "layer_types",
      "\"full_attention\" for every layer");
  take_rope(file, config);
}

// Source: transformers' Qwen2Config and Qwen3Config.
void write_file(HuggingFaceConfigText& text, const DecoderConfig& config) {
  text.add("rope_scaling", rope_scaling_json(config));
  text.add("sliding_window", "null");
  text.flag("use_sliding_window", false);
}

const DecoderForm& qwen2_form() {
  static const DecoderForm kForm = {
      .sizes = {"qwen2",
                "qwen2",
                decoder_sizes(),
                {{"0.5B", qwen(decoder_of(896, 24, 14, 2, 4864, kVocab), true)},
                 {"1.5B", qwen(decoder_of(1536, 28, 12, 2, 8960, kVocab), true)},
                 {"3B", qwen(decoder_of(2048, 36, 16, 2, 11008, kVocab), true)},
                 {"7B", qwen(decoder_of(3584, 28, 28, 4, 18944, 152064), false)}},
                kDefaults},
      .write = qwen2,
      .model_type = "qwen2",
      .architecture = "Qwen2ForCausalLM",
      .query_biases = true,
      .file_kv_heads = 32,
      .read = read_file,
      .write_config = write_file};
  return kForm;
}

const DecoderForm& qwen3_form() {
  constexpr std::int64_t kHead = 128;
  static const DecoderForm kForm = {
      .sizes = {"qwen3",
                "qwen3",
                decoder_sizes({attention_bias_size()}),
                {{"0.6B", qwen(decoder_of(1024, 28, 16, 8, 3072, kVocab), true, kHead)},
                 {"1.7B", qwen(decoder_of(2048, 28, 16, 8, 6144, kVocab), true, kHead)},
                 {"4B", qwen(decoder_of(2560, 36, 32, 8, 9728, kVocab), true, kHead)},
                 {"8B", qwen(decoder_of(4096, 36, 32, 8, 12288, kVocab), false, kHead)},
                 {"14B", qwen(decoder_of(5120, 40, 40, 8, 17408, kVocab), false, kHead)},
                 {"32B", qwen(decoder_of(5120, 64, 64, 8, 25600, kVocab), false, kHead)}},
                kDefaults},
      .write = qwen3,
      .model_type = "qwen3",
      .architecture = "Qwen3ForCausalLM",
      .head_norms = HeadNorms::kEach,
      .file_kv_heads = 32,
      .file_head_dim = kHead,
      .read = read_file,
      .write_config = write_file};
  return kForm;
}

}  // namespace

ModelFamily qwen2_family() {
  return decoder_family<qwen2_form>();
}

ModelFamily qwen3_family() {
  return decoder_family<qwen3_form>();
}

}  // namespace tessera
