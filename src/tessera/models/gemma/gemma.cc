#include "tessera/models/gemma/gemma.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/format.h"
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
  sizes.tied = kDefaults.tied;
  sizes.rope_theta = kDefaults.rope_theta;
  sizes.norm_eps = kDefaults.norm_eps;
  sizes.head_dim = head_dim;
  sizes.window = window;
  sizes.global_every = kDefaults.global_every;
  sizes.rope_local_theta = kDefaults.rope_local_theta;
  sizes.query_pre_attn_scalar = query_pre_attn_scalar;
  return sizes;
}

// Of a model for images, too, whose text model has ids of images and longer texts.
C gemma_of_images(C sizes, std::int64_t head_dim, double query_pre_attn_scalar) {
  sizes.vocab = kVocab + 64;
  C config = gemma(sizes, head_dim, query_pre_attn_scalar, 1024);
  config.rope_linear_factor = 8.0;
  return config;
}

// A size that config.json has in a form of its own.
FamilySize<C> own_size(std::string_view key, FamilySize<C>::Member member) {
  return {.key = key, .member = member, .file = FamilySize<C>::File::kNowhere};
}

// How many layers there are from one without a window to the next: as the list by layer has it, or
// the key beside it. (Some files also have "_sliding_window_pattern", which transformers do not
// read.)
std::int64_t read_global_every(const HuggingFaceConfig& file, std::int64_t layers) {
  constexpr const char* kList = "layer_types";
  constexpr const char* kPattern = "sliding_window_pattern";
  constexpr std::int64_t kAbsent = 6;
  const std::vector<std::string> types = file.texts(kList);
  std::int64_t every = file.size(kPattern, kAbsent);
  if (!file.has(kPattern) && !types.empty()) {
    every = std::ranges::find(types, "full_attention") - types.begin() + 1;
  }
  for (std::int64_t i = 0; i < std::ssize(types); ++i) {
    const char* const expected = (i + 1) % every == 0 ? "full_attention" : "sliding_attention";
    file.require(std::ssize(types) == layers && types[static_cast<std::size_t>(i)] == expected,
                 kList,
                 format("{} texts, each {}th \"full_attention\", the others \"sliding_attention\"",
                        layers,
                        every));
  }
  return every;
}

// Of layers with a window: in an object of their own in files of transformers 5.
double read_local_theta(const HuggingFaceConfig& file) {
  constexpr const char* kOwn = "rope_local_base_freq";
  constexpr const char* kTheta = "rope_parameters.sliding_attention.rope_theta";
  constexpr const char* kType = "rope_parameters.sliding_attention.rope_type";
  file.require(file.text(kType, "default") == "default", kType, "\"default\"");
  const char* const key = file.has(kTheta) ? kTheta : kOwn;
  const double theta = file.real(key, kDefaults.rope_local_theta);
  file.require_same(kOwn, theta, key);
  return theta;
}

void read_file(const HuggingFaceConfig& file, C& config) {
  constexpr std::int64_t kAbsentWindow = 4096;
  constexpr const char* kScalar = "query_pre_attn_scalar";
  file.text("hidden_act", "");  // of older files, and means nothing
  take_window(file, config, kAbsentWindow);
  file.require(config.window > 0, "sliding_window", "a positive number");
  config.global_every = read_global_every(file, config.layers);
  config.query_pre_attn_scalar = file.real(kScalar, 256.0);
  take_rope(
      file, config, {.keys = {.default_theta = kDefaults.rope_theta, .layers = "full_attention"}});
  config.rope_local_theta = read_local_theta(file);
}

// Source: transformers' Gemma3TextConfig, which takes the scalar for a whole number.
void write_file(HuggingFaceConfigText& text, const C& config) {
  const double scalar = config.query_pre_attn_scalar;
  constexpr double kMostWhole = 1e15;
  if (scalar == std::floor(scalar) && scalar < kMostWhole) {
    text.number("query_pre_attn_scalar", static_cast<std::int64_t>(scalar));
  } else {
    text.real("query_pre_attn_scalar", scalar);
  }
  text.add("attn_logit_softcapping", "null");
  text.add("final_logit_softcapping", "null");
  text.add("pad_token_id", "null");  // else 0, whose row would not be trained
  text.real("rope_local_base_freq", config.rope_local_theta);
  text.add("rope_scaling", rope_scaling_json(config));
  text.number("sliding_window_pattern", config.global_every);
  write_window(text, config);
}

const DecoderForm& gemma3_form() {
  static const DecoderForm kForm = {
      .sizes = {"gemma3",
                "gemma3",
                decoder_sizes({attention_bias_size(),
                               own_size("window", &C::window),
                               own_size("global_every", &C::global_every),
                               own_size("query_pre_attn_scalar", &C::query_pre_attn_scalar),
                               own_size("rope_local_theta", &C::rope_local_theta)},
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
      .complete =
          [](C& config) {
            if (config.query_pre_attn_scalar == 0.0) {
              config.query_pre_attn_scalar = static_cast<double>(config.head());
            }
          },
      .read = read_file,
      .write_config = write_file};
  return kForm;
}

}  // namespace

ModelFamily gemma3_family() {
  return decoder_family<gemma3_form>();
}

}  // namespace tessera
