#include "tessera/models/decoder/decoder_family.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/ops/attention/attention.h"

namespace tessera {

using C = DecoderConfig;

namespace {

bool has_no_factor(const C& config) {
  return config.rope_linear_factor == 1.0 && config.rope_dynamic_factor == 1.0 &&
         config.rope_yarn_factor == 1.0;
}

bool has_no_long_rope(const C& config) {
  return !config.has_long_rope();
}

}  // namespace

std::vector<FamilySize<C>> decoder_sizes(std::vector<FamilySize<C>> own,
                                         const DecoderFileDefaults& absent) {
  using enum FamilySize<C>::File;
  std::vector<FamilySize<C>> sizes = {
      {.key = "dim", .member = &C::dim, .file_key = "hidden_size"},
      {.key = "layers", .member = &C::layers, .file_key = "num_hidden_layers"},
      {.key = "heads", .member = &C::heads, .file_key = "num_attention_heads"},
      {.key = "kv_heads",
       .member = &C::kv_heads,
       .file_key = "num_key_value_heads",
       .file = kWritten},
      // Left out of descriptions where older checkpoints say nothing of it.
      {.key = "head_dim",
       .member = &C::head_dim,
       .file = kNowhere,
       .is_usual = [](const C& config) { return config.head() * config.heads == config.dim; }},
      {.key = "ffn", .member = &C::ffn, .file_key = "intermediate_size"},
      {.key = "vocab", .member = &C::vocab, .file_key = "vocab_size"},
      {.key = "tied",
       .member = &C::tied,
       .file_key = "tie_word_embeddings",
       .file_default = absent.tied ? 1 : 0}};
  sizes.insert(sizes.end(), own.begin(), own.end());
  for (const auto& [key, factor] : {std::pair{"rope_linear_factor", &C::rope_linear_factor},
                                    {"rope_dynamic_factor", &C::rope_dynamic_factor},
                                    {"rope_yarn_factor", &C::rope_yarn_factor}}) {
    sizes.push_back({.key = key, .member = factor, .file = kNowhere, .is_usual = has_no_factor});
  }
  // Descriptions have the three factors and this one, or this one and the three below, or none.
  sizes.push_back({.key = "rope_original_length",
                   .member = &C::rope_original_length,
                   .file = kNowhere,
                   .is_usual = [](const C& config) {
                     return has_no_factor(config) && has_no_long_rope(config);
                   }});
  for (const auto& [key, factors] : {std::pair{"rope_short_factors", &C::rope_short_factors},
                                     {"rope_long_factors", &C::rope_long_factors}}) {
    sizes.push_back(
        {.key = key, .member = factors, .file = kNowhere, .is_usual = has_no_long_rope});
  }
  sizes.push_back({.key = "rope_scaled_length",
                   .member = &C::rope_scaled_length,
                   .file = kNowhere,
                   .is_usual = has_no_long_rope});
  sizes.push_back(
      {.key = "rope_theta", .member = &C::rope_theta, .file_key = "rope_theta", .file = kWritten});
  // What the first Llamas leave out.
  sizes.push_back({.key = "norm_eps",
                   .member = &C::norm_eps,
                   .file_key = "rms_norm_eps",
                   .file_default = absent.norm_eps});
  return sizes;
}

FamilySize<C> window_size() {
  return {.key = "window",
          .member = &C::window,
          .file = FamilySize<C>::File::kNowhere,
          .is_usual = [](const C& config) { return config.window == 0; }};
}

void take_window(const HuggingFaceConfig& file, DecoderConfig& config, std::int64_t absent) {
  constexpr const char* kKey = "sliding_window";
  config.window = file.has(kKey) ? file.size(kKey) : file.is_null(kKey) ? 0 : absent;
  file.require(config.window <= kMaxWindow, kKey, format("at most {}", kMaxWindow));
}

void write_window(HuggingFaceConfigText& text, const DecoderConfig& config) {
  text.add("sliding_window", config.window == 0 ? "null" : format("{}", config.window));
}

FamilySize<C> attention_bias_size() {
  return {.key = "attention_bias",
          .member = &C::attention_bias,
          .file_key = "attention_bias",
          .file_default = 0,
          .is_usual = [](const C& config) { return !config.attention_bias; }};
}

DecoderConfig decoder_of(std::int64_t dim,
                         std::int64_t layers,
                         std::int64_t heads,
                         std::int64_t kv_heads,
                         std::int64_t ffn,
                         std::int64_t vocab) {
  return {.dim = dim,
          .layers = layers,
          .heads = heads,
          .kv_heads = kv_heads,
          .ffn = ffn,
          .vocab = vocab};
}

DecoderConfig decoder_config(const DecoderForm& form, const ModelSection& section) {
  DecoderConfig config = form.sizes.config(section, {});
  config.kv_heads = config.kv_heads > 0 ? config.kv_heads : config.heads;
  validate(config);
  if (form.complete != nullptr) {
    form.complete(config);
  }
  if (form.check != nullptr) {
    form.check(config);
  }
  return config.canonical();
}

ModelDescription describe_decoder(const DecoderForm& form, const DecoderConfig& config) {
  validate(config);
  return {.model = [config, write = form.write](
                       GraphBuilder& builder,
                       const ModelInputs& inputs) { return write(builder, config, inputs); },
          .vocab = config.vocab,
          .num_layers = config.layers,
          .num_heads = config.heads,
          .head_dim = config.head(),
          .num_embedding_parameters = config.tied ? 0 : config.vocab * config.dim,
          .json = form.sizes.describe(config)};
}

ModelSection decoder_section(const DecoderForm& form,
                             const ModelSection& section,
                             const DecoderConfig& config) {
  ModelSection result = form.sizes.section(section, config);
  result.head_dim = config.head();
  if (config.window == 0) {
    result.window.reset();
  }
  if (config.rope_original_length == 0) {
    result.rope_original_length.reset();
  }
  if (!config.has_long_rope()) {
    result.rope_short_factors.reset();
    result.rope_long_factors.reset();
    result.rope_scaled_length.reset();
  }
  return result;
}

namespace {

HuggingFaceRope take_theta(const HuggingFaceConfig& file,
                           const HuggingFaceRopeKeys& keys,
                           C& config) {
  HuggingFaceRope rope = read_rope(file, keys);
  config.rope_theta = rope.theta;
  file.require(rope.fraction == 1.0, rope.fraction_key, "1.0: all of each head");
  return rope;
}

// Llama 3.1's numbers but the factor are the published ones.
void take_llama3(const HuggingFaceConfig& file, const HuggingFaceRope& rope, C& config) {
  const std::string& object = rope.object;
  config.rope_scaling = true;
  config.rope_factor = file.real(object + "factor");
  const RopeTableAttrs known = rope_attrs(config, 0);
  const auto require_known = [&](const std::string& name, double expected) {
    file.require(file.real(object + name) == expected, object + name, python_float(expected));
  };
  require_known("low_freq_factor", known.low_frequency_factor);
  require_known("high_freq_factor", known.high_frequency_factor);
  file.require(file.size(object + "original_max_position_embeddings") == known.original_length,
               object + "original_max_position_embeddings",
               format("{}", known.original_length));
  file.require_same("original_max_position_embeddings",
                    static_cast<double>(known.original_length),
                    object + "original_max_position_embeddings");
  if (config.rope_factor == 1.0) {  // scales nothing, and is written as nothing
    config.rope_scaling = false;
    config.rope_factor = C().rope_factor;
  }
}

void take_yarn(const HuggingFaceConfig& file, const HuggingFaceRope& rope, C& config) {
  const std::string& object = rope.object;
  config.rope_yarn_factor = file.real(object + "factor");
  const std::string original = object + "original_max_position_embeddings";
  const std::string key = file.has(original) ? original : "max_position_embeddings";
  config.rope_original_length = file.size(key);
  file.require_same(
      "original_max_position_embeddings", static_cast<double>(config.rope_original_length), key);
  const auto require_usual = [&](const std::string& name, double expected) {
    file.require(
        file.real(object + name, expected) == expected, object + name, python_float(expected));
  };
  require_usual("beta_fast", 32.0);
  require_usual("beta_slow", 1.0);
  require_usual("attention_factor", yarn_magnitude(config.rope_yarn_factor));
  file.require(file.flag(object + "truncate", true), object + "truncate", "true");
}

// What both lengths are has keys of its own in Phi-3's files; in others the object may have the
// first, or the second's quotient by it.
void take_long_rope(const HuggingFaceConfig& file, const HuggingFaceRope& rope, C& config) {
  constexpr const char* kOwn = "original_max_position_embeddings";
  constexpr const char* kLongest = "max_position_embeddings";
  const std::string& object = rope.object;
  const auto factors = [&](const char* name) {
    const std::string key = object + name;
    std::vector<double> numbers = file.reals(key);
    file.require(std::ssize(numbers) == config.head_dim / 2 &&
                     std::ranges::all_of(numbers, [](double factor) { return factor > 0.0; }),
                 key,
                 format("{} numbers above 0, one for each pair of a head of {}",
                        config.head_dim / 2,
                        config.head_dim));
    return numbers;
  };
  config.rope_short_factors = factors("short_factor");
  config.rope_long_factors = factors("long_factor");
  const std::string key = file.has(kOwn) ? kOwn : object + kOwn;
  config.rope_original_length = file.size(key);
  file.require(config.rope_original_length > 1, key, "more than 1");
  file.require_same(object + kOwn, static_cast<double>(config.rope_original_length), key);
  config.rope_scaled_length = file.size(kLongest);
  file.require(config.rope_scaled_length >= config.rope_original_length,
               kLongest,
               format("no less than \"{}\" = {}", key, config.rope_original_length));
  // To a few roundings of whoever computed it.
  const auto require_usual = [&](const char* name, double expected) {
    file.require(std::abs(file.real(object + name, expected) - expected) <= 1e-9 * expected,
                 object + name,
                 python_float(expected));
  };
  require_usual("factor",
                static_cast<double>(config.rope_scaled_length) /
                    static_cast<double>(config.rope_original_length));
  require_usual("attention_factor",
                long_rope_magnitude(config.rope_original_length, config.rope_scaled_length));
}

}  // namespace

void take_rope(const HuggingFaceConfig& file, DecoderConfig& config, const DecoderRope& forms) {
  const HuggingFaceRope rope = take_theta(file, forms.keys, config);
  const std::string factor = rope.object + "factor";
  if (rope.type == "llama3" && forms.llama3) {
    take_llama3(file, rope, config);
  } else if (rope.type == "linear") {
    config.rope_linear_factor = file.real(factor);
  } else if (rope.type == "dynamic") {
    config.rope_dynamic_factor = file.real(factor);
    config.rope_original_length = file.size("max_position_embeddings");
  } else if (rope.type == "yarn") {
    take_yarn(file, rope, config);
  } else if (rope.type == "longrope" || rope.type == "su") {  // its first name
    take_long_rope(file, rope, config);
  } else {
    file.require(rope.type == "default",
                 rope.type_key,
                 format("{}\"linear\", \"dynamic\", \"yarn\", \"longrope\" or nothing",
                        forms.llama3 ? "\"llama3\", " : ""));
  }
  if (has_no_factor(config) && has_no_long_rope(config)) {  // a factor of 1 scales nothing
    config.rope_original_length = 0;
  }
}

std::string rope_scaling_json(const DecoderConfig& config) {
  if (config.rope_scaling) {
    const RopeTableAttrs rope = rope_attrs(config, 0);
    return format(
        "{{\"factor\": {}, \"high_freq_factor\": {}, \"low_freq_factor\": {}, "
        "\"original_max_position_embeddings\": {}, \"rope_type\": \"llama3\"}}",
        python_float(rope.scaling_factor),
        python_float(rope.high_frequency_factor),
        python_float(rope.low_frequency_factor),
        rope.original_length);
  }
  const auto of_type = [](std::string_view type, double factor, const std::string& more) {
    return format("{{\"factor\": {}{}, \"rope_type\": \"{}\"}}", python_float(factor), more, type);
  };
  if (config.rope_linear_factor != 1.0) {
    return of_type("linear", config.rope_linear_factor, "");
  }
  if (config.rope_dynamic_factor != 1.0) {
    return of_type("dynamic", config.rope_dynamic_factor, "");
  }
  if (config.rope_yarn_factor != 1.0) {
    return of_type(
        "yarn",
        config.rope_yarn_factor,
        format(", \"original_max_position_embeddings\": {}", config.rope_original_length));
  }
  if (config.has_long_rope()) {  // with no key beside these: Phi-3's readers refuse it
    return format("{{\"long_factor\": {}, \"short_factor\": {}, \"type\": \"longrope\"}}",
                  python_floats(config.rope_long_factors),
                  python_floats(config.rope_short_factors));
  }
  return "null";
}

DecoderConfig decoder_from_hugging_face(const DecoderForm& form, const HuggingFaceConfig& file) {
  DecoderConfig config = form.sizes.read(file);
  constexpr const char* kKvHeads = "num_key_value_heads";
  const bool has_default = form.file_kv_heads > 0 && !file.is_null(kKvHeads);
  config.kv_heads = file.size(kKvHeads, has_default ? form.file_kv_heads : config.heads);
  file.require(file.has("head_dim") || form.file_head_dim > 0 || config.dim % config.heads == 0,
               "num_attention_heads",
               format("a divisor of \"hidden_size\" = {}", config.dim));
  config.head_dim = file.size(
      "head_dim", form.file_head_dim > 0 ? form.file_head_dim : config.dim / config.heads);
  constexpr std::int64_t kMost = std::int64_t{1} << 31U;
  file.require(config.head_dim <= kMost / config.heads,
               "num_attention_heads",
               format("at most {} rows of heads of {}", kMost, config.head_dim));
  file.require(
      config.head_dim % 2 == 0,
      file.has("head_dim") ? "head_dim" : "num_attention_heads",
      format("heads of an even size (rotary positions turn pairs), not of {}", config.head_dim));
  file.require(config.heads % config.kv_heads == 0,
               "num_key_value_heads",
               format("a divisor of \"num_attention_heads\" = {}", config.heads));
  file.require(file.text(form.activation_key, form.activation) == form.activation,
               form.activation_key,
               format("\"{}\"", form.activation));
  form.read(file, config);
  return config.canonical();
}

std::string decoder_config_text(const DecoderForm& form,
                                const DecoderConfig& config,
                                const HuggingFaceFacts& facts) {
  HuggingFaceConfigText text;
  text.add("architectures", format("[\"{}\"]", form.architecture));
  text.real("attention_dropout", 0.0);
  text.tokens("bos_token_id", facts.bos);
  text.tokens("eos_token_id", facts.eos);
  text.number("head_dim", config.head());
  text.text(form.activation_key, form.activation);
  // What a dynamic factor starts from has no other key, and older transformers take YaRN's factor
  // for the quotient of both lengths.
  const double longest = config.rope_yarn_factor * static_cast<double>(config.rope_original_length);
  text.number("max_position_embeddings",
              config.has_long_rope()             ? config.rope_scaled_length
              : config.rope_original_length == 0 ? facts.sequence_length
                                                 : std::llround(longest));
  if (config.has_long_rope()) {
    text.number("original_max_position_embeddings", config.rope_original_length);
  }
  text.text("model_type", form.model_type);
  text.dtype(facts.dtype);
  form.write_config(text, config);
  form.sizes.write(text, config);
  return text.finish();
}

namespace {

// Lists the weights of a file, with the parameters that they are made of.
class DecoderWeights {
 public:
  DecoderWeights(const DecoderForm& form, const DecoderConfig& config)
      : form_(form),
        config_(config),
        head_(config.head()),
        all_(head_ * config.heads),
        kv_(head_ * config.kv_heads),
        bias_(form.query_biases || config.attention_bias) {}

  std::vector<HuggingFaceWeight> list() {
    add("model.embed_tokens.weight", "tok_embeddings.weight", {config_.vocab, config_.dim});
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      theirs_ = format("model.layers.{}.", layer);
      ours_ = format("layers.{}.", layer);
      add_attention();
      add_feed_forward();
      add_norms();
    }
    add("model.norm.weight", "norm.weight", {config_.dim});
    if (!config_.tied) {
      add("lm_head.weight", "output.weight", {config_.vocab, config_.dim});
    }
    return std::move(weights_);
  }

 private:
  void add(const std::string& name,
           const std::string& parameter,
           const std::vector<std::int64_t>& shape,
           std::int64_t rotary_rows = 0) {
    weights_.push_back({.name = name,
                        .parts = {{.parameter = parameter, .rotary_rows = rotary_rows}},
                        .shape = shape,
                        .head_rows = rotary_rows});
  }

  // A matrix of a layer, and the bias that it may have.
  void add_product(const std::string& name,
                   const std::string& parameter,
                   const std::vector<std::int64_t>& shape,
                   bool bias = false,
                   std::int64_t rotary_rows = 0) {
    add(theirs_ + name + ".weight", ours_ + parameter + ".weight", shape, rotary_rows);
    if (bias) {
      add(theirs_ + name + ".bias", ours_ + parameter + ".bias", {shape[0]}, rotary_rows);
    }
  }

  void add_attention() {
    if (form_.fused_files) {
      const auto part = [&](const char* which, std::int64_t rows) {
        return HuggingFaceWeight::Part{.parameter = format("{}attention.{}.weight", ours_, which),
                                       .rows = rows};
      };
      HuggingFaceWeight fused = {.name = theirs_ + "self_attn.qkv_proj.weight",
                                 .parts = {part("wq", all_), part("wk", kv_), part("wv", kv_)},
                                 .shape = {all_ + 2 * kv_, config_.dim}};
      for (HuggingFaceWeight::Part& turned : std::span(fused.parts).first(2)) {
        turned.rotary_rows = head_;
        turned.head_rows = head_;
      }
      weights_.push_back(std::move(fused));
    } else {
      add_product("self_attn.q_proj", "attention.wq", {all_, config_.dim}, bias_, head_);
      add_product("self_attn.k_proj", "attention.wk", {kv_, config_.dim}, bias_, head_);
      add_product("self_attn.v_proj", "attention.wv", {kv_, config_.dim}, bias_);
    }
    add_product("self_attn.o_proj", "attention.wo", {config_.dim, all_}, config_.attention_bias);
    if (form_.head_norms != HeadNorms::kNone) {
      const bool is_each = form_.head_norms == HeadNorms::kEach;
      add_product("self_attn.q_norm", "attention.q_norm", {is_each ? head_ : all_}, false, head_);
      add_product("self_attn.k_norm", "attention.k_norm", {is_each ? head_ : kv_}, false, head_);
    }
  }

  void add_feed_forward() {
    if (form_.fused_files) {
      weights_.push_back({.name = theirs_ + "mlp.gate_up_proj.weight",
                          .parts = {{.parameter = ours_ + "feed_forward.w1.weight"},
                                    {.parameter = ours_ + "feed_forward.w3.weight"}},
                          .shape = {2 * config_.ffn, config_.dim}});
    } else {
      add_product("mlp.gate_proj", "feed_forward.w1", {config_.ffn, config_.dim});
      add_product("mlp.up_proj", "feed_forward.w3", {config_.ffn, config_.dim});
    }
    add_product("mlp.down_proj", "feed_forward.w2", {config_.dim, config_.ffn});
  }

  void add_norms() {
    const auto add_norm = [&](const char* theirs, const char* ours) {
      add_product(theirs, ours, {config_.dim});
    };
    switch (form_.block_norms) {
      case BlockNorms::kBefore:
        add_norm("input_layernorm", "attention_norm");
        add_norm("post_attention_layernorm", "ffn_norm");
        break;
      case BlockNorms::kAfter:
        add_norm("post_attention_layernorm", "attention_norm");
        add_norm("post_feedforward_layernorm", "ffn_norm");
        break;
      case BlockNorms::kBoth:
        add_norm("input_layernorm", "attention_norm");
        add_norm("post_attention_layernorm", "attention_post_norm");
        add_norm("pre_feedforward_layernorm", "ffn_norm");
        add_norm("post_feedforward_layernorm", "ffn_post_norm");
        break;
    }
  }

  const DecoderForm& form_;
  const DecoderConfig& config_;
  std::int64_t head_;
  std::int64_t all_;  // rows of all queries
  std::int64_t kv_;
  bool bias_;
  std::string theirs_;  // what names of a layer begin with
  std::string ours_;
  std::vector<HuggingFaceWeight> weights_;
};

}  // namespace

std::vector<HuggingFaceWeight> decoder_weights(const DecoderForm& form,
                                               const DecoderConfig& config) {
  return DecoderWeights(form, config).list();
}

}  // namespace tessera
