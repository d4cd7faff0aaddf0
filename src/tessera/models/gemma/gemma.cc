#include "tessera/models/gemma/gemma.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/models/decoder/decoder_blocks.h"
#include "tessera/models/decoder/decoder_family.h"
#include "tessera/ops/elementwise/elementwise.h"

namespace tessera {

namespace {

// kHeadNorms: with norms of each query and key.
template <bool kHeadNorms>
ModelOutputs gemma(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs) {
  DecoderBlocks m(builder, config, inputs, {.gain_offset = 1.0, .scaled_embedding = true});
  const bool bias = config.attention_bias;
  return m.write([&](const Value& x, const std::string& layer) {
    const Value a = m.norm(x, layer + "attention_norm");
    Value q = m.queries(a, layer, bias);
    q = kHeadNorms ? m.head_norm(q, layer + "attention.q_norm") : q;
    Value k = m.keys(a, layer, bias);
    k = kHeadNorms ? m.head_norm(k, layer + "attention.k_norm") : k;
    const Value v = m.values(a, layer, bias);
    const Value o = m.attend(m.turned(q), m.turned(k), v, layer, bias);
    const Value h = add(x, m.norm(o, layer + "attention_post_norm"));

    const Value b = m.feed_forward(m.norm(h, layer + "ffn_norm"), layer, Gate::kGelu);
    return add(h, m.norm(b, layer + "ffn_post_norm"));
  });
}

}  // namespace

ModelOutputs gemma2(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs) {
  return gemma<false>(builder, config, inputs);
}

ModelOutputs gemma3(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs) {
  return gemma<true>(builder, config, inputs);
}

namespace {

using C = DecoderConfig;

const C kDefaults2 = {.tied = true,
                      .rope_theta = 10000.0,
                      .norm_eps = 1e-6,
                      .window = 4096,
                      .global_every = 2,
                      .attention_softcap = 50.0,
                      .logits_softcap = 30.0};

const C kDefaults3 = {.tied = true,
                      .rope_theta = 1e6,
                      .norm_eps = 1e-6,
                      .window = 1024,
                      .global_every = 6,
                      .rope_local_theta = 10000.0};

constexpr std::int64_t kVocab2 = 256000;
constexpr std::int64_t kVocab3 = 262144;

struct Size {
  std::int64_t dim;
  std::int64_t layers;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t ffn;
  std::int64_t head_dim;
  double query_pre_attn_scalar;
};

C published(C config, const Size& size, std::int64_t vocab) {
  config.dim = size.dim;
  config.layers = size.layers;
  config.heads = size.heads;
  config.kv_heads = size.kv_heads;
  config.ffn = size.ffn;
  config.vocab = vocab;
  config.head_dim = size.head_dim;
  config.query_pre_attn_scalar = size.query_pre_attn_scalar;
  return config;
}

C gemma3_of(const Size& size) {
  C config = published(kDefaults3, size, kVocab3);
  config.window = 512;
  return config;
}

// Of a model for images, too, whose text model has ids of images and longer texts.
C gemma3_of_images(const Size& size) {
  C config = published(kDefaults3, size, kVocab3 + 64);
  config.rope_linear_factor = 8.0;
  return config;
}

// A size that config.json has in a form of its own.
FamilySize<C> own_size(std::string_view key, FamilySize<C>::Member member) {
  return {.key = key, .member = member, .file = FamilySize<C>::File::kNowhere};
}

constexpr const char* kGlobalLayer = "full_attention";
constexpr const char* kLocalLayer = "sliding_attention";

// How many layers there are from one without a window to the next: as the list by layer has it, or
// `said`, which a key beside it or the family says.
std::int64_t read_global_every(const HuggingFaceConfig& file,
                               std::int64_t layers,
                               std::int64_t said,
                               bool is_key) {
  constexpr const char* kList = "layer_types";
  const std::vector<std::string> types = file.texts(kList);
  std::int64_t every = said;
  if (!is_key && !types.empty()) {
    every = std::ranges::find(types, kGlobalLayer) - types.begin() + 1;
  }
  for (std::int64_t i = 0; i < std::ssize(types); ++i) {
    const char* const expected = (i + 1) % every == 0 ? kGlobalLayer : kLocalLayer;
    file.require(std::ssize(types) == layers && types[static_cast<std::size_t>(i)] == expected,
                 kList,
                 format("{} texts, each {}th \"{}\", the others \"{}\"",
                        layers,
                        every,
                        kGlobalLayer,
                        kLocalLayer));
  }
  return every;
}

// A cap that config.json has under `key`: null is none, and `absent` what no key means.
double read_softcap(const HuggingFaceConfig& file, const char* key, double absent) {
  const double cap = file.is_null(key) ? 0.0 : file.real(key, absent);
  file.require(cap >= 0.0 && (cap > 0.0 || !file.has(key)), key, "a positive number, or null");
  return cap;
}

constexpr const char* kScoresCap = "attn_logit_softcapping";
constexpr const char* kLogitsCap = "final_logit_softcapping";
constexpr const char* kScalar = "query_pre_attn_scalar";

// What files of both have beside the sizes of all decoders, those of layers aside.
void read_common(const HuggingFaceConfig& file, const C& absent, C& config) {
  constexpr std::int64_t kAbsentWindow = 4096;
  file.text("hidden_act", "");  // of older files, and means nothing
  take_window(file, config, kAbsentWindow);
  file.require(config.window > 0, "sliding_window", "a positive number");
  config.query_pre_attn_scalar = file.real(kScalar, 256.0);
  config.logits_softcap = read_softcap(file, kLogitsCap, absent.logits_softcap);
}

void write_common(HuggingFaceConfigText& text, const C& config) {
  const double scalar = config.query_pre_attn_scalar;
  constexpr double kMostWhole = 1e15;
  if (scalar == std::floor(scalar) && scalar < kMostWhole) {
    text.number(kScalar, static_cast<std::int64_t>(scalar));
  } else {
    text.real(kScalar, scalar);
  }
  const auto add_cap = [&](const char* key, double cap) {
    text.add(key, cap == 0.0 ? "null" : python_float(cap));
  };
  add_cap(kScoresCap, config.attention_softcap);
  add_cap(kLogitsCap, config.logits_softcap);
  text.add("pad_token_id", "null");  // else 0, whose row would not be trained
  text.add("rope_scaling", rope_scaling_json(config));
  write_window(text, config);
}

// Its published files also have the window as "sliding_window_size".
void read_gemma2(const HuggingFaceConfig& file, C& config) {
  read_common(file, kDefaults2, config);
  config.attention_softcap = read_softcap(file, kScoresCap, kDefaults2.attention_softcap);
  file.require_same("sliding_window_size", static_cast<double>(config.window), "sliding_window");
  config.global_every = read_global_every(file, config.layers, kDefaults2.global_every, false);
  take_rope(file, config, {.keys = {.default_theta = kDefaults2.rope_theta}});
}

// Source: transformers' Gemma2Config.
void write_gemma2(HuggingFaceConfigText& text, const C& config) {
  text.text("hidden_act", "gelu_pytorch_tanh");
  write_common(text, config);
  if (config.global_every == kDefaults2.global_every) {
    return;  // as published files have it, which list no layers
  }
  std::string types;
  for (std::int64_t i = 0; i < config.layers; ++i) {
    types += format("{}\"{}\"", i > 0 ? ", " : "", config.is_local(i) ? kLocalLayer : kGlobalLayer);
  }
  text.add("layer_types", format("[{}]", types));
}

// Of layers with a window: in an object of their own in files of transformers 5.
double read_local_theta(const HuggingFaceConfig& file) {
  constexpr const char* kOwn = "rope_local_base_freq";
  constexpr const char* kTheta = "rope_parameters.sliding_attention.rope_theta";
  constexpr const char* kType = "rope_parameters.sliding_attention.rope_type";
  file.require(file.text(kType, "default") == "default", kType, "\"default\"");
  const char* const key = file.has(kTheta) ? kTheta : kOwn;
  const double theta = file.real(key, kDefaults3.rope_local_theta);
  file.require_same(kOwn, theta, key);
  return theta;
}

// Some files also have "_sliding_window_pattern", which transformers do not read, and a cap of
// scores, which they read and do not apply.
void read_gemma3(const HuggingFaceConfig& file, C& config) {
  constexpr const char* kPattern = "sliding_window_pattern";
  read_common(file, kDefaults3, config);
  file.require(!file.has(kScoresCap), kScoresCap, "null: Gemma 3 caps no scores");
  config.global_every = read_global_every(
      file, config.layers, file.size(kPattern, kDefaults3.global_every), file.has(kPattern));
  take_rope(
      file, config, {.keys = {.default_theta = kDefaults3.rope_theta, .layers = kGlobalLayer}});
  config.rope_local_theta = read_local_theta(file);
}

// Source: transformers' Gemma3TextConfig, which takes the scalar for a whole number.
void write_gemma3(HuggingFaceConfigText& text, const C& config) {
  write_common(text, config);
  text.real("rope_local_base_freq", config.rope_local_theta);
  text.number("sliding_window_pattern", config.global_every);
}

// The sizes of a family beside those of all decoders: those that both have, and `more`.
std::vector<FamilySize<C>> gemma_sizes(const std::vector<FamilySize<C>>& more) {
  std::vector<FamilySize<C>> own = {attention_bias_size(),
                                    own_size("window", &C::window),
                                    own_size("global_every", &C::global_every),
                                    own_size("query_pre_attn_scalar", &C::query_pre_attn_scalar)};
  own.insert(own.end(), more.begin(), more.end());
  own.push_back(own_size("logits_softcap", &C::logits_softcap));
  return decoder_sizes(own, {.tied = true});
}

// What the forms of both have in common.
DecoderForm form_of(FamilySizes<C> sizes) {
  return {.sizes = std::move(sizes),
          .write = nullptr,
          .model_type = {},
          .architecture = {},
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
          .read = nullptr,
          .write_config = nullptr};
}

DecoderForm make_gemma2_form() {
  DecoderForm form =
      form_of({"gemma2",
               "gemma2",
               gemma_sizes({own_size("attention_softcap", &C::attention_softcap)}),
               {{"2B", published(kDefaults2, {2304, 26, 8, 4, 9216, 256, 256}, kVocab2)},
                {"9B", published(kDefaults2, {3584, 42, 16, 8, 14336, 256, 256}, kVocab2)},
                {"27B", published(kDefaults2, {4608, 46, 32, 16, 36864, 128, 144}, kVocab2)}},
               kDefaults2});
  form.write = gemma2;
  form.model_type = "gemma2";
  form.architecture = "Gemma2ForCausalLM";
  form.read = read_gemma2;
  form.write_config = write_gemma2;
  return form;
}

DecoderForm make_gemma3_form() {
  std::vector<FamilySize<C>> sizes =
      gemma_sizes({own_size("rope_local_theta", &C::rope_local_theta)});
  // Left out of descriptions where there is none, as in those of older checkpoints.
  std::ranges::find(sizes, "logits_softcap", &FamilySize<C>::key)->is_usual = [](const C& config) {
    return config.logits_softcap == 0.0;
  };
  DecoderForm form = form_of({"gemma3",
                              "gemma3",
                              sizes,
                              {{"270M", gemma3_of({640, 18, 4, 1, 2048, 256, 256})},
                               {"1B", gemma3_of({1152, 26, 4, 1, 6912, 256, 256})},
                               {"4B", gemma3_of_images({2560, 34, 8, 4, 10240, 256, 256})},
                               {"12B", gemma3_of_images({3840, 48, 16, 8, 15360, 256, 256})},
                               {"27B", gemma3_of_images({5376, 62, 32, 16, 21504, 128, 168})}},
                              kDefaults3});
  form.write = gemma3;
  form.model_type = "gemma3_text";
  form.architecture = "Gemma3ForCausalLM";
  form.head_norms = HeadNorms::kEach;
  form.read = read_gemma3;
  form.write_config = write_gemma3;
  return form;
}

const DecoderForm& gemma2_form() {
  static const DecoderForm kForm = make_gemma2_form();
  return kForm;
}

const DecoderForm& gemma3_form() {
  static const DecoderForm kForm = make_gemma3_form();
  return kForm;
}

}  // namespace

ModelFamily gemma2_family() {
  return decoder_family<gemma2_form>();
}

ModelFamily gemma3_family() {
  return decoder_family<gemma3_form>();
}

}  // namespace tessera
