#include "tessera/models/gemma/gemma.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/decoder/decoder_blocks.h"
#include "tessera/models/decoder/decoder_family.h"
#include "tessera/ops/elementwise/elementwise.h"

namespace tessera {

ModelOutputs gemma3(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs) {
  DecoderBlocks m(builder, config, inputs, {.gain_offset = 1.0, .scaled_embedding = true});
  const bool bias = config.attention_bias;
  return m.write([&](const Value& x, const std::string& layer) {
    const Value a = m.norm(x, layer + "attention_norm");
    const Value q = m.head_norm(m.queries(a, layer, bias), layer + "attention.q_norm");
    const Value k = m.head_norm(m.keys(a, layer, bias), layer + "attention.k_norm");
    const Value v = m.values(a, layer, bias);
    const Value o = m.attend(m.turned(q), m.turned(k), v, layer, bias);
    const Value h = add(x, m.norm(o, layer + "attention_post_norm"));

    const Value b = m.feed_forward(m.norm(h, layer + "ffn_norm"), layer, Gate::kGelu);
    return add(h, m.norm(b, layer + "ffn_post_norm"));
  });
}

namespace {

using C = DecoderConfig;

constexpr std::int64_t kVocab = 262144;

constexpr C kDefaults = {.tied = true,
                         .rope_theta = 1e6,
                         .norm_eps = 1e-6,
                         .window = 1024,
                         .global_every = 6,
                         .rope_local_theta = 10000.0};

C gemma(C sizes, std::int64_t head_dim, double query_pre_attn_scalar, std::int64_t window) {
  C config = kDefaults;
  config.dim = sizes.dim;
  config.layers = sizes.layers;
  config.heads = sizes.heads;
  config.kv_heads = sizes.kv_heads;
  config.ffn = sizes.ffn;
  config.vocab = sizes.vocab;
  config.head_dim = head_dim;
  config.window = window;
  config.query_pre_attn_scalar = query_pre_attn_scalar;
  return config;
}

// Those for images, too, whose text models have ids of images and longer texts.
C gemma_of_images(C sizes, std::int64_t head_dim, double query_pre_attn_scalar) {
  sizes.vocab = kVocab + 64;
  C config = gemma(sizes, head_dim, query_pre_attn_scalar, 1024);
  config.rope_linear_factor = 8.0;
  return config;
}

FamilySize<C> global_every_size() {
  return {.key = "global_every",
          .member = &C::global_every,
          .file = FamilySize<C>::File::kNowhere,
          .is_usual = [](const C& config) { return config.global_every == 0; }};
}

// How many layers there are from one without a window to the next. Files say it in a key, in a list
// by layer, or in both.
std::int64_t read_global_every(const HuggingFaceConfig& file, std::int64_t layers) {
  constexpr const char* kList = "layer_types";
  constexpr std::int64_t kAbsent = 6;
  const char* const key =
      file.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const std::vector<std::string> types = file.texts(kList);
  std::int64_t every = file.size(key, kAbsent);
  if (!file.has(key) && !types.empty()) {
    const auto first = std::ranges::find(types, "full_attention");
    every = first - types.begin() + 1;
  }
  for (std::int64_t i = 0; i < std::ssize(types); ++i) {
    const bool is_global = (i + 1) % every == 0;
    const std::string& type = types[static_cast<std::size_t>(i)];
    file.require(
        std::ssize(types) == layers && type == (is_global ? "full_attention" : "sliding_attention"),
        kList,
        format("{} texts, \"full_attention\" each {} and \"sliding_attention\" between",
               layers,
               every));
  }
  return every;
}

void read_file(const HuggingFaceConfig& file, C& config) {
  file.text("hidden_act", "");  // of older files, and means nothing
  constexpr std::int64_t kAbsentWindow = 4096;
  take_window(file, config, kAbsentWindow);
  file.require(config.window > 0, "sliding_window", "a positive number");
  config.global_every = read_global_every(file, config.layers);
  take_rope(file, config);
}

// Source: transformers' Gemma3TextConfig.
void write_file(HuggingFaceConfigText& text, const C& config) {
  text.add("attn_logit_softcapping", "null");
  text.add("final_logit_softcapping", "null");
  text.add("rope_scaling", rope_scaling_json(config));
  text.number("sliding_window_pattern", config.global_every);
  write_window(text, config);
}

const DecoderForm& gemma3_form() {
  static const DecoderForm kForm = {
      .sizes = {"gemma3",
                "gemma3",
                decoder_sizes({attention_bias_size(),
                               window_size(),
                               global_every_size(),
                               {.key = "query_pre_attn_scalar",
                                .member = &C::query_pre_attn_scalar,
                                .file_key = "query_pre_attn_scalar",
                                .file_default = 256},
                               {.key = "rope_local_theta",
                                .member = &C::rope_local_theta,
                                .file_key = "rope_local_base_freq",
                                .file_default = 10000}},
                              {.tied = true}),
                {{"270M", gemma(decoder_of(640, 18, 4, 1, 2048, kVocab), 256, 256, 512)},
                 {"1B", gemma(decoder_of(1152, 26, 4, 1, 6912, kVocab), 256, 256, 512)},
                 {"4B", gemma_of_images(decoder_of(2560, 34, 8, 4, 10240, kVocab), 256, 256)},
                 {"12B", gemma_of_images(decoder_of(3840, 48, 16, 8, 15360, kVocab), 256, 256)},
                 {"27B", gemma_of_images(decoder_of(5376, 62, 32, 16, 21504, kVocab), 128, 168)}},
                kDefaults},
      .write = gemma3,
      .model_type = "gemma3_text",
      .architecture = "Gemma3ForCausalLM",
      .head_norms = HeadNorms::kEach,
      .block_norms = BlockNorms::kBoth,
      .activation_key = "hidden_activation",
      .activation = "gelu_pytorch_tanh",
      .file_kv_heads = 4,
      .file_head_dim = 256,
      .read = read_file,
      .write_config = write_file};
  return kForm;
}

}  // namespace

ModelFamily gemma3_family() {
  return decoder_family<gemma3_form>();
}

}  // namespace tessera
