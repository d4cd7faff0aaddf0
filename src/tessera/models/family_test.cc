#include "tessera/models/family.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/ir/builder.h"
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/neox/neox.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// The elements of every parameter of a flavor's model.
std::map<std::string, std::int64_t> parameters(const ModelFamily& family,
                                               const ModelSection& section) {
  GraphBuilder builder("model", DType::kBF16);
  const TensorType ids{.dtype = DType::kI32,
                       .dims = {{.name = "batch", .bound = 1}, {.name = "seq", .bound = 2}}};
  const ModelInputs inputs{.tokens = builder.input("tokens", ids),
                           .positions = builder.input("positions", ids),
                           .documents = builder.input("documents", ids)};
  builder.output("hidden", family.describe(section).model(builder, inputs).hidden);
  const Graph graph = builder.take();
  std::map<std::string, std::int64_t> sizes;
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    sizes[graph[parameter].name] = graph[parameter].type.num_elements();
  }
  return sizes;
}

std::int64_t total(const std::map<std::string, std::int64_t>& sizes) {
  std::int64_t count = 0;
  for (const auto& [name, size] : sizes) {
    count += size;
  }
  return count;
}

ModelSection flavor(const std::string& name, const std::string& flavor) {
  return model_family(name).resolve({.name = name, .flavor = flavor});
}

TEST(ModelFamilies, FlavorsHaveThePublishedNumbersOfParameters) {
  const std::map<std::string, std::int64_t> gpt2 = {
      {"124M", 124439808}, {"350M", 354823168}, {"774M", 774030080}, {"1558M", 1557611200}};
  for (const auto& [name, published] : gpt2) {
    ModelSection section = flavor("gpt2", name);
    EXPECT_EQ(section.padded_vocab, 50304);
    section.padded_vocab = section.vocab;
    EXPECT_EQ(total(parameters(model_family("gpt2"), section)), published) << name;
  }
  EXPECT_EQ(total(parameters(model_family("neox"), flavor("neox", "20B"))), 20554567680);
  const std::map<std::pair<std::string, std::string>, std::int64_t> decoders = {
      {{"qwen2", "0.5B"}, 494032768},       {{"qwen2", "1.5B"}, 1543714304},
      {{"qwen2", "3B"}, 3085938688},        {{"qwen2", "7B"}, 7615616512},
      {{"qwen3", "0.6B"}, 596049920},       {{"qwen3", "1.7B"}, 1720574976},
      {{"qwen3", "4B"}, 4022468096},        {{"qwen3", "8B"}, 8190735360},
      {{"qwen3", "14B"}, 14768307200},      {{"qwen3", "32B"}, 32762123264},
      {{"phi3", "mini-4k"}, 3821079552},    {{"olmo2", "1B"}, 1484916736},
      {{"olmo2", "7B"}, 7298617344},        {{"olmo2", "13B"}, 13716198400},
      {{"gemma2", "2B"}, 2614341888},       {{"gemma2", "9B"}, 9241705984},
      {{"gemma2", "27B"}, 27227128320},     {{"gemma3", "12B"}, 11766034176},
      {{"gemma3", "27B"}, 27009346304},     {{"gemma3", "270M"}, 268098176},
      {{"gemma3", "1B"}, 999885952},        {{"gemma3", "4B"}, 3880263168},
      {{"mistral", "7B-v0.1"}, 7241732096}, {{"mistral", "7B"}, 7248023552},
      {{"mistral", "nemo"}, 12247782400}};
  for (const auto& [model, published] : decoders) {
    const auto& [family, size] = model;
    EXPECT_EQ(total(parameters(model_family(family), flavor(family, size))), published)
        << family << " " << size;
  }
}

TEST(ModelFamilies, EveryParameterIsInOneWeight) {
  for (const ModelFamily& family : model_families()) {
    ModelSection section = family.resolve(
        {.name = std::string(family.name), .flavor = std::string(family.flavors[0])});
    section.padded_vocab = section.padded_vocab ? section.vocab : std::nullopt;
    std::map<std::string, std::int64_t> sizes;
    for (const HuggingFaceWeight& weight : family.hugging_face_weights(section)) {
      for (std::size_t part = 0; part < weight.parts.size(); ++part) {
        const std::string& parameter = weight.parts[part].parameter;
        EXPECT_TRUE(sizes.emplace(parameter, weight.part_rows(part) * weight.columns()).second)
            << parameter;
      }
      for (std::int64_t row = 0; row < weight.rows(); ++row) {
        ASSERT_EQ(their_row(weight, our_row(weight, row)), row) << weight.name;
      }
    }
    EXPECT_EQ(sizes, parameters(family, section)) << family.name;
  }
}

TEST(ModelFamilies, ConfigsAreReadAsTheyWereWritten) {
  for (const ModelFamily& family : model_families()) {
    for (const std::string_view name : family.flavors) {
      ModelSection section =
          family.resolve({.name = std::string(family.name), .flavor = std::string(name)});
      const HuggingFaceConfig config(family.hugging_face_config(section, {.sequence_length = 64}),
                                     "config.json");
      EXPECT_EQ(&hugging_face_family(config), &model_family(family.name));
      section.flavor.clear();
      if (section.padded_vocab) {
        section.padded_vocab = section.vocab;  // what padding there is, no file says
      }
      EXPECT_EQ(family.from_hugging_face(config), section) << family.name << " " << name;
    }
  }
}

TEST(ModelFamilies, RefuseKeysThatTheyHaveNoUseFor) {
  const auto message = [](const ModelSection& section) {
    try {
      model_family(section.name).resolve(section);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message({.name = "gpt2", .flavor = "tiny", .kv_heads = 2}),
              HasSubstr("model.kv_heads is set"));
  EXPECT_THAT(message({.name = "gpt2", .flavor = "tiny", .tied = false}),
              HasSubstr("model.tied is false"));
  EXPECT_THAT(message({.name = "neox", .flavor = "tiny", .positions = 8}),
              HasSubstr("model.positions is set"));
  EXPECT_THAT(message({.name = "neox", .flavor = "tiny", .rotary_fraction = 0.2}),
              HasSubstr("turns 3 elements, expected an even number"));
  EXPECT_THAT(message({.name = "llama3", .flavor = "debug", .padded_vocab = 4096}),
              HasSubstr("model.padded_vocab is set"));
  EXPECT_THAT(message({.name = "llama3", .flavor = "debug", .rope_factor = 4.0}),
              HasSubstr("model.rope_factor = 4 has no use without model.rope_scaling = true"));
  EXPECT_THAT(message({.name = "llama3",
                       .flavor = "1B",
                       .rope_linear_factor = 2.0,
                       .rope_dynamic_factor = 2.0}),
              HasSubstr("model.rope_scaling = true and model.rope_linear_factor = 2 and "
                        "model.rope_dynamic_factor = 2 scale positions in 3 ways"));
  EXPECT_THAT(message({.name = "mistral", .flavor = "7B", .window = (std::int64_t{1} << 30U) + 1}),
              HasSubstr("model.window = 1073741825, expected at most 1073741824"));
  EXPECT_EQ(
      model_family("qwen3").resolve({.name = "qwen3", .flavor = "0.6B", .dim = 1024}).head_dim,
      128);
  EXPECT_EQ(
      model_family("llama3").resolve({.name = "llama3", .flavor = "debug", .heads = 32}).head_dim,
      8);
  EXPECT_THAT(message({.name = "llama3", .flavor = "debug", .rope_yarn_factor = 2.0}),
              HasSubstr("model.rope_yarn_factor = 2 without model.rope_original_length"));
  EXPECT_THAT(message({.name = "llama3", .flavor = "debug", .rope_original_length = 64}),
              HasSubstr("model.rope_original_length = 64 has no use without"));
  const ModelSection phi = {.name = "phi3",
                            .dim = 16,
                            .layers = 1,
                            .heads = 4,
                            .ffn = 40,
                            .vocab = 65,
                            .rope_short_factors = {{1.0, 1.5}},
                            .rope_long_factors = {{2.0, 2.5}},
                            .rope_original_length = 64,
                            .rope_scaled_length = 128};
  const auto phi_with = [&](const auto& change) {
    ModelSection section = phi;
    change(section);
    return message(section);
  };
  EXPECT_EQ(message(phi), "no error");
  EXPECT_THAT(phi_with([](ModelSection& m) { m.rope_short_factors.reset(); }),
              HasSubstr("model.rope_short_factors has 0 numbers, expected 2: one for each pair of "
                        "a head of 4"));
  EXPECT_THAT(phi_with([](ModelSection& m) { m.rope_long_factors = {{1.0, 2.0, 3.0}}; }),
              HasSubstr("model.rope_long_factors has 3 numbers, expected 2"));
  EXPECT_THAT(phi_with([](ModelSection& m) { m.rope_scaled_length = 63; }),
              HasSubstr("model.rope_original_length = 64 and model.rope_scaled_length = 63"));
  EXPECT_THAT(phi_with([](ModelSection& m) { m.rope_original_length.reset(); }),
              HasSubstr("model.rope_original_length = 0 and model.rope_scaled_length = 128"));
  EXPECT_THAT(phi_with([](ModelSection& m) { m.rope_linear_factor = 2.0; }),
              HasSubstr("model.rope_linear_factor = 2 and model.rope_long_factors scale"));
  EXPECT_THAT(message({.name = "llama3", .flavor = "debug", .rope_scaled_length = 64}),
              HasSubstr("model.rope_scaled_length = 64 has no use without"));
  EXPECT_THAT(message({.name = "gpt2", .flavor = "tiny", .padded_vocab = 100}),
              HasSubstr("model.padded_vocab = 100 is less than model.vocab = 250"));
  EXPECT_THAT(message({.name = "gpt2", .flavor = "tiny", .heads = 5}),
              HasSubstr("model.heads = 5 does not divide model.dim = 64"));
}

TEST(ModelFamilies, UnknownOnesAreNamedWithThoseThatThereAre) {
  try {
    hugging_face_family(HuggingFaceConfig(R"({"model_type": "bert"})", "x/config.json"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "x/config.json: \"model_type\" at byte 1: found \"bert\", expected one of \"llama\", "
              "\"gpt2\", \"gpt_neox\", \"qwen2\", \"qwen3\", \"mistral\", \"phi3\", \"olmo2\", "
              "\"gemma2\", \"gemma3_text\"");
  }
}

// As transformers 5 write it.
TEST(ModelFamilies, NeoxReadsRotaryParametersInOneObject) {
  const auto read = [](const std::string& rope) {
    return model_family("neox").from_hugging_face(HuggingFaceConfig(
        R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 96, "vocab_size": 100, "hidden_act": "gelu_fast",
            "rope_parameters": )" +
            rope + "}",
        "config.json"));
  };
  const ModelSection section =
      read(R"({"rope_theta": 20000, "partial_rotary_factor": 0.5, "rope_type": "default"})");
  EXPECT_EQ(section.rope_theta, 20000.0);
  EXPECT_EQ(section.rotary_fraction, 0.5);
  EXPECT_THAT(
      error_of(ErrorCode::kInvalidData,
               [&] { read(R"({"rope_theta": 20000, "rope_type": "linear"})"); }),
      HasSubstr(
          "\"rope_parameters.rope_type\" at byte 206: found \"linear\", expected \"default\""));
}

// Of a whole config.json of each family, with more keys.
HuggingFaceModel read_with(const std::string& family, const std::string& keys) {
  const std::map<std::string, std::string> own = {
      {"llama", R"("hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "intermediate_size": 96)"},
      {"qwen2", R"("hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "num_key_value_heads": 2, "intermediate_size": 96)"},
      {"qwen3", R"("hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 96)"},
      {"phi3", R"("hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "intermediate_size": 96)"},
      {"mistral", R"("hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
                     "intermediate_size": 96)"},
      {"olmo2", R"("hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "intermediate_size": 96)"},
      {"gemma2", R"("hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
                    "intermediate_size": 96)"},
      {"gemma3_text", R"("hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
                         "intermediate_size": 96)"},
      {"gpt_neox", R"("hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                      "intermediate_size": 96, "hidden_act": "gelu_fast")"},
      {"gpt2", R"("n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128)"}};
  return hugging_face_model(HuggingFaceConfig(R"({"model_type": ")" + family +
                                                  R"(", "vocab_size": 100, )" + own.at(family) +
                                                  (keys.empty() ? "" : ", ") + keys + "}",
                                              "config.json"));
}

// The key at the front of the refusal.
std::string refused_key(const std::string& family, const std::string& keys) {
  const std::string message = error_of(ErrorCode::kInvalidData, [&] { read_with(family, keys); });
  const std::size_t first = message.find('"') + 1;
  EXPECT_THAT(message, HasSubstr(": found ")) << message;
  return message.substr(first, message.find('"', first) - first);
}

TEST(HuggingFaceKeys, UnknownScalingsAreRefusedInEveryForm) {
  for (const std::string family : {"llama", "gpt_neox", "qwen2", "qwen3", "mistral"}) {
    for (const std::string object : {"rope_scaling", "rope_parameters"}) {
      for (const std::string type : {"type", "rope_type"}) {
        const std::string theta = object == "rope_parameters" ? R"(, "rope_theta": 10000.0)" : "";
        const std::string keys =
            format(R"("{}": {{"{}": "twisted", "factor": 4.0{}}})", object, type, theta);
        EXPECT_EQ(refused_key(family, keys), object + "." + type) << family;
      }
    }
    EXPECT_EQ(refused_key(family, R"("rope_scaling": {"factor": 4.0})"), "rope_scaling.factor");
    EXPECT_EQ(refused_key(family, R"("rope_scaling": "twisted")"), "rope_scaling");
    EXPECT_EQ(refused_key(family, R"("rope_scaling": {"type": ["twisted"], "factor": 2})"),
              "rope_scaling.type");
    EXPECT_EQ(refused_key(family, R"("rope_scaling": {"rope_type": "default", "type": "twisted"})"),
              "rope_scaling.type");
    // transformers 5 take "rope_scaling" where both are there; 4 know no "rope_parameters".
    EXPECT_EQ(refused_key(family,
                          R"("rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
                             "rope_scaling": {"type": "twisted", "factor": 4.0})"),
              "rope_scaling.type");
    EXPECT_NO_THROW(read_with(family, R"("rope_scaling": {"rope_type": "default"})"));
    EXPECT_NO_THROW(read_with(family, R"("rope_scaling": {})"));
    EXPECT_NO_THROW(read_with(family, R"("rope_scaling": null, "rope_parameters": null)"));
  }
  EXPECT_EQ(refused_key("gpt2", R"("rope_scaling": {"type": "twisted", "factor": 4.0})"),
            "rope_scaling.factor");
}

TEST(HuggingFaceKeys, ScaledPositionsAreReadInEveryForm) {
  for (const std::string family : {"llama", "qwen2", "qwen3", "mistral", "olmo2"}) {
    const auto scaled = [&](const std::string& scaling) {
      return read_with(family, R"("max_position_embeddings": 128, "rope_scaling": )" + scaling)
          .section;
    };
    EXPECT_EQ(scaled(R"({"type": "linear", "factor": 4.0})").rope_linear_factor, 4.0);
    const ModelSection dynamic = scaled(R"({"rope_type": "dynamic", "factor": 2.0})");
    EXPECT_EQ(dynamic.rope_dynamic_factor, 2.0);
    EXPECT_EQ(dynamic.rope_original_length, 128);
    const ModelSection yarn =
        scaled(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})");
    EXPECT_EQ(yarn.rope_yarn_factor, 4.0);
    EXPECT_EQ(yarn.rope_original_length, 32);
    EXPECT_EQ(scaled(R"({"rope_type": "yarn", "factor": 4.0})").rope_original_length, 128);
    EXPECT_EQ(scaled(R"({"rope_type": "dynamic", "factor": 1.0})").rope_original_length,
              std::nullopt);
    EXPECT_EQ(refused_key(family,
                          R"("max_position_embeddings": 128,
                             "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 16.0})"),
              "rope_scaling.beta_fast");
    EXPECT_EQ(refused_key(family,
                          R"("max_position_embeddings": 128,
                             "rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0})"),
              "rope_scaling.mscale");
    EXPECT_EQ(refused_key(family, R"("rope_scaling": {"type": "linear"})"), "rope_scaling.factor");
    EXPECT_EQ(refused_key(family, R"("rope_scaling": {"type": "dynamic", "factor": 2.0})"),
              "max_position_embeddings");
  }
}

TEST(HuggingFaceKeys, TwoNamesOfOneThingMustAgree) {
  EXPECT_EQ(read_with("gpt_neox", R"("rotary_pct": 0.5, "partial_rotary_factor": 0.5)")
                .section.rotary_fraction,
            0.5);
  EXPECT_EQ(read_with("gpt_neox",
                      R"("rotary_pct": 0.5,
                         "rope_parameters": {"rope_type": "default", "rope_theta": 500})")
                .section.rotary_fraction,
            0.5);
  // Beside the family's own key, or its default.
  EXPECT_EQ(refused_key("gpt_neox", R"("rotary_pct": 0.5, "partial_rotary_factor": 0.25)"),
            "partial_rotary_factor");
  EXPECT_EQ(refused_key("gpt_neox", R"("partial_rotary_factor": 0.5)"), "partial_rotary_factor");
  EXPECT_EQ(refused_key("gpt_neox", R"("rotary_emb_base": 10000, "rope_theta": 500)"),
            "rope_theta");
  EXPECT_EQ(refused_key("gpt_neox",
                        R"("rotary_pct": 1.0, "rope_parameters":
                             {"rope_theta": 10000.0, "partial_rotary_factor": 0.5})"),
            "rotary_pct");
  EXPECT_EQ(refused_key("llama", R"("rope_theta": 500.0, "rope_scaling": {"rope_theta": 600.0})"),
            "rope_scaling.rope_theta");
  EXPECT_EQ(refused_key("llama", R"("rotary_pct": 0.5)"), "rotary_pct");
  EXPECT_EQ(refused_key("gpt2", R"("hidden_size": 32)"), "hidden_size");
  EXPECT_EQ(refused_key("gpt2", R"("num_attention_heads": 2)"), "num_attention_heads");
  EXPECT_EQ(refused_key("gpt_neox", R"("head_dim": 32)"), "head_dim");
  EXPECT_EQ(refused_key("gpt_neox", R"("num_key_value_heads": 2)"), "num_key_value_heads");
  EXPECT_NO_THROW(read_with("gpt2", R"("hidden_size": 64, "head_dim": 16, "n_ctx": 128)"));
}

TEST(HuggingFaceKeys, WhatChangesAResultIsRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> anywhere = {
      {"sliding_window", "4096"},
      {"layer_types", R"(["sliding_attention", "full_attention"])"},
      {"logit_scale", "0.0625"},
      {"final_logit_softcapping", "30.0"},
      {"num_experts", "8"},
      {"add_cross_attention", "true"},
      {"is_encoder_decoder", "true"},
      {"pruned_heads", R"({"0": [1]})"},
      {"quantization_config", R"({"load_in_4bit": true})"},
      {"scale_attn_by_inverse_layer_idx", "true"},
      {"rope_interleaved", "true"}};
  for (const std::string family : {"llama", "gpt_neox", "gpt2"}) {
    for (const auto& [key, value] : anywhere) {
      EXPECT_THAT(refused_key(family, format(R"("{}": {})", key, value)), testing::StartsWith(key))
          << family;
    }
  }
  EXPECT_EQ(refused_key("qwen2", R"("attention_bias": true)"), "attention_bias");
  EXPECT_EQ(refused_key("mistral", R"("attention_bias": true)"), "attention_bias");
  EXPECT_EQ(refused_key("mistral", R"("sliding_window": 0)"), "sliding_window");
  EXPECT_EQ(refused_key("phi3", R"("partial_rotary_factor": 0.75)"), "partial_rotary_factor");
  EXPECT_EQ(read_with("mistral", R"("sliding_window": 4096)").section.window, 4096);
  EXPECT_EQ(read_with("mistral", R"("sliding_window": null)").section.window, std::nullopt);
  EXPECT_EQ(refused_key("mistral", R"("sliding_window": 2147483647)"), "sliding_window");
  // What transformers take where keys are absent.
  EXPECT_EQ(read_with("mistral", "").section.window, 4096);
  EXPECT_EQ(read_with("mistral", "").section.kv_heads, 8);
  EXPECT_EQ(read_with("mistral", R"("num_key_value_heads": null)").section.kv_heads, 8);
  EXPECT_EQ(read_with("phi3", "").section.window, std::nullopt);
  EXPECT_EQ(read_with("phi3", "").section.norm_eps, 1e-5);
  EXPECT_EQ(read_with("olmo2", "").section.norm_eps, 1e-5);
  EXPECT_EQ(read_with("llama", "").section.norm_eps, 1e-6);
  EXPECT_EQ(model_family("qwen3")
                .from_hugging_face(HuggingFaceConfig(
                    R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 32,
                        "intermediate_size": 96, "vocab_size": 100})",
                    "config.json"))
                .head_dim,
            128);
  EXPECT_EQ(refused_key("qwen2", R"("use_sliding_window": true, "sliding_window": 4096)"),
            "use_sliding_window");
  EXPECT_EQ(refused_key("qwen3", R"("layer_types": ["full_attention", "sliding_attention"])"),
            "layer_types");
  EXPECT_EQ(refused_key("qwen3", R"("layer_types": ["full_attention", 3])"), "layer_types");
  EXPECT_EQ(refused_key("qwen3", R"("layer_types": "full_attention")"), "layer_types");
  EXPECT_EQ(refused_key("olmo2", R"("num_key_value_heads": 3)"), "num_key_value_heads");
  EXPECT_EQ(refused_key("llama", R"("mlp_bias": true)"), "mlp_bias");
  EXPECT_EQ(refused_key("llama", R"("tie_word_embeddings": "yes")"), "tie_word_embeddings");
  EXPECT_EQ(refused_key("gpt_neox", R"("attention_bias": false)"), "attention_bias");
  EXPECT_EQ(refused_key("gpt_neox", R"("tie_word_embeddings": true)"), "tie_word_embeddings");
  EXPECT_EQ(refused_key("gpt2", R"("scale_attn_weights": false)"), "scale_attn_weights");
  const auto neox = [](const char* activation) {
    return model_family("neox").from_hugging_face(HuggingFaceConfig(
        format(R"({{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                    "intermediate_size": 96, "vocab_size": 100, "hidden_act": "{}"}})",
               activation),
        "config.json"));
  };
  EXPECT_EQ(neox("gelu").exact_gelu, true);
  EXPECT_EQ(neox("gelu_new").exact_gelu, false);
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { neox("relu"); }), HasSubstr("hidden_act"));
  EXPECT_EQ(read_with("gpt_neox", R"("use_parallel_residual": false)").section.parallel_residual,
            false);
  EXPECT_EQ(refused_key("gpt2", R"("tie_word_embeddings": false)"), "tie_word_embeddings");
  EXPECT_EQ(refused_key("gpt2", R"("activation_function": "gelu")"), "activation_function");
  EXPECT_EQ(error_of(ErrorCode::kInvalidData,
                     [] { read_with("gpt2", R"("layer_types": ["sliding_attention"])"); }),
            "config.json: \"layer_types\" at byte 103: found [\"sliding_attention\"], expected "
            "nothing: it is for what a model computes, and this program has no such model");
}

// Which layers have no window, in whatever way a file says it.
TEST(HuggingFaceConfigs, Gemma3HasLayersOfTwoKinds) {
  const auto every = [](const std::string& keys) {
    return read_with("gemma3_text", keys).section.global_every;
  };
  const auto types = [](const std::string& list) { return R"("layer_types": [)" + list + "]"; };
  const std::string local = R"("sliding_attention", )";
  const std::string global = R"("full_attention")";
  EXPECT_EQ(every(""), 6);
  EXPECT_EQ(every(R"("sliding_window_pattern": 3)"), 3);
  EXPECT_EQ(every(types(local + global + ", " + local + global)), 2);
  EXPECT_EQ(every(types(global + ", " + global + ", " + global + ", " + global)), 1);
  EXPECT_EQ(every(types(local + local + local + R"("sliding_attention")")), 5);
  EXPECT_EQ(every(types(local + local + global + ", " + R"("sliding_attention")") +
                  R"(, "_sliding_window_pattern": 3)"),
            3);
  const auto refused = [](const std::string& keys) { return refused_key("gemma3_text", keys); };
  EXPECT_EQ(refused(types(local + global + ", " + global + ", " + global)), "layer_types");
  EXPECT_EQ(refused(types(local + global)), "layer_types");
  EXPECT_EQ(refused(types(local + global + ", " + local + R"("chunked_attention")")),
            "layer_types");
  EXPECT_EQ(
      refused(types(local + global + ", " + local + global) + R"(, "sliding_window_pattern": 3)"),
      "layer_types");
  EXPECT_EQ(refused(R"("sliding_window": null)"), "sliding_window");
  EXPECT_EQ(refused(R"("hidden_activation": "gelu")"), "hidden_activation");
  EXPECT_EQ(refused(R"("use_bidirectional_attention": true)"), "use_bidirectional_attention");
  EXPECT_EQ(read_with("gemma3_text", R"("final_logit_softcapping": 30.0)").section.logits_softcap,
            30.0);
  const HuggingFaceModel plain = read_with("gemma3_text", R"("hidden_act": "gelu")");
  EXPECT_EQ(plain.section.window, 4096);
  EXPECT_EQ(plain.section.head_dim, 256);
  EXPECT_EQ(plain.section.kv_heads, 4);
  EXPECT_EQ(plain.section.query_pre_attn_scalar, 256.0);
  EXPECT_EQ(plain.section.rope_theta, 1e6);
  EXPECT_EQ(plain.section.rope_local_theta, 10000.0);
  EXPECT_EQ(plain.section.tied, true);
}

// Heads of 16: eight pairs.
TEST(HuggingFaceConfigs, LongRopeIsReadInEveryForm) {
  const std::string lists = R"("short_factor": [1, 1, 1, 1, 1, 1, 1, 1.5],
                               "long_factor": [1, 2, 3, 4, 5, 6, 7, 8.25])";
  const auto read = [&](const std::string& more, const std::string& keys) {
    return read_with(
               "phi3",
               R"("max_position_embeddings": 256, "rope_scaling": {)" + lists + more + "}" + keys)
        .section;
  };
  const std::string original = R"(, "original_max_position_embeddings": 64)";
  const ModelSection section = read(R"(, "type": "longrope")", original);
  EXPECT_EQ(section.rope_short_factors, (std::vector<double>{1, 1, 1, 1, 1, 1, 1, 1.5}));
  EXPECT_EQ(section.rope_long_factors, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8.25}));
  EXPECT_EQ(section.rope_original_length, 64);
  EXPECT_EQ(section.rope_scaled_length, 256);
  EXPECT_EQ(read(R"(, "type": "su")", original), section);
  EXPECT_EQ(read(R"(, "rope_type": "longrope", "factor": 4.0)" + original, ""), section);
  const std::string written =
      model_family("phi3").hugging_face_config(section, {.sequence_length = 10});
  EXPECT_EQ(hugging_face_model(HuggingFaceConfig(written, "config.json")).section, section);

  const auto refused = [&](const std::string& scaling, const std::string& keys) {
    return refused_key("phi3",
                       R"("max_position_embeddings": 256, "rope_scaling": {"type": "longrope", )" +
                           scaling + "}" + keys);
  };
  const std::string scaling = "rope_scaling.";
  EXPECT_EQ(refused(R"("long_factor": [1.5])", original), scaling + "short_factor");
  EXPECT_EQ(refused(R"("short_factor": [1, 1, 1, 1, 1, 1, 1, 1], "long_factor": [1, 2])", original),
            scaling + "long_factor");
  EXPECT_EQ(refused(R"("short_factor": [1, 1, 1, 1, 1, 1, 1, 0])", original),
            scaling + "short_factor");
  EXPECT_EQ(refused(R"("short_factor": [1, 1, 1, 1, 1, 1, 1, "1"])", original),
            scaling + "short_factor");
  EXPECT_EQ(refused(lists, ""), scaling + "original_max_position_embeddings");
  EXPECT_EQ(refused(lists, R"(, "original_max_position_embeddings": 257)"),
            "max_position_embeddings");
  EXPECT_EQ(refused(lists, R"(, "original_max_position_embeddings": 1)"),
            "original_max_position_embeddings");
  EXPECT_EQ(refused(lists + R"(, "original_max_position_embeddings": 32)", original),
            scaling + "original_max_position_embeddings");
  EXPECT_EQ(refused(lists + R"(, "factor": 8.0)", original), scaling + "factor");
  EXPECT_EQ(refused(lists + R"(, "attention_factor": 1.5)", original),
            scaling + "attention_factor");
  EXPECT_EQ(refused(lists + R"(, "short_mscale": 1.5)", original), scaling + "short_mscale");
}

TEST(HuggingFaceConfigs, Gemma2HasCapsUnlessAFileHasNone) {
  const ModelSection plain = read_with("gemma2", "").section;
  EXPECT_EQ(plain.attention_softcap, 50.0);
  EXPECT_EQ(plain.logits_softcap, 30.0);
  EXPECT_EQ(plain.window, 4096);
  EXPECT_EQ(plain.global_every, 2);
  EXPECT_EQ(plain.head_dim, 256);
  EXPECT_EQ(plain.rope_theta, 10000.0);
  const auto read = [](const std::string& keys) { return read_with("gemma2", keys).section; };
  EXPECT_EQ(read(R"("attn_logit_softcapping": null)").attention_softcap, 0.0);
  EXPECT_EQ(read(R"("final_logit_softcapping": 12.5)").logits_softcap, 12.5);
  EXPECT_EQ(read(R"("sliding_window": 9, "sliding_window_size": 9)").window, 9);
  const std::string types = R"("layer_types": ["full_attention", "full_attention",
                                               "full_attention", "full_attention"])";
  EXPECT_EQ(read(types).global_every, 1);
  // Written back where it is not as in published files.
  const ModelFamily& family = model_family("gemma2");
  const auto written = [&](const ModelSection& section) {
    return family.hugging_face_config(section, {.sequence_length = 64});
  };
  EXPECT_THAT(written(plain), testing::Not(HasSubstr("layer_types")));
  EXPECT_EQ(hugging_face_model(HuggingFaceConfig(written(read(types)), "config.json")).section,
            read(types));
  const auto refused = [](const std::string& keys) { return refused_key("gemma2", keys); };
  EXPECT_EQ(refused(R"("attn_logit_softcapping": 0.0)"), "attn_logit_softcapping");
  EXPECT_EQ(refused(R"("final_logit_softcapping": -30.0)"), "final_logit_softcapping");
  EXPECT_EQ(refused(R"("final_logit_softcapping": "none")"), "final_logit_softcapping");
  EXPECT_EQ(refused(R"("sliding_window": 9, "sliding_window_size": 8)"), "sliding_window_size");
  EXPECT_EQ(refused(R"("sliding_window_pattern": 3)"), "sliding_window_pattern");
  EXPECT_EQ(refused(R"("rope_local_base_freq": 1e4)"), "rope_local_base_freq");
}

// As transformers 5 write the positions of layers of two kinds.
TEST(HuggingFaceConfigs, Gemma3HasPositionsOfTwoKinds) {
  const auto with = [](const std::string& global, const std::string& local) {
    return R"("rope_parameters": {"full_attention": {)" + global + R"(}, "sliding_attention": {)" +
           local + "}}";
  };
  const std::string plain = R"("rope_type": "default", "rope_theta": 20000.0)";
  const HuggingFaceModel model =
      read_with("gemma3_text",
                with(R"("rope_type": "linear", "factor": 4.0, "rope_theta": 300000.0)", plain));
  EXPECT_EQ(model.section.rope_theta, 300000.0);
  EXPECT_EQ(model.section.rope_linear_factor, 4.0);
  EXPECT_EQ(model.section.rope_local_theta, 20000.0);
  EXPECT_THAT(model.unknown_keys, testing::IsEmpty());
  const auto refused = [](const std::string& keys) { return refused_key("gemma3_text", keys); };
  EXPECT_EQ(refused(with(plain, R"("rope_type": "linear", "factor": 2.0, "rope_theta": 1e4)")),
            "rope_parameters.sliding_attention.rope_type");
  EXPECT_EQ(refused(with(plain, plain) + R"(, "rope_local_base_freq": 10000.0)"),
            "rope_local_base_freq");
  EXPECT_EQ(refused(R"("rope_parameters": {"rope_type": "default", "rope_theta": 1e6})"),
            "rope_parameters.full_attention.rope_theta");
}

// Sizes that nobody says follow from the others, and go out as transformers can read them.
TEST(HuggingFaceConfigs, Gemma3OfFewSizesGoesOutAndComesIn) {
  const ModelFamily& family = model_family("gemma3");
  const ModelSection section = family.resolve(
      {.name = "gemma3", .dim = 64, .layers = 4, .heads = 4, .ffn = 96, .vocab = 100});
  EXPECT_EQ(section.query_pre_attn_scalar, 16.0);
  EXPECT_EQ(section.window, 1024);
  EXPECT_EQ(family.resolve(section), section);
  const std::string text = family.hugging_face_config(section, {.sequence_length = 128});
  EXPECT_THAT(text, HasSubstr("\"query_pre_attn_scalar\": 16,\n"));
  EXPECT_EQ(hugging_face_model(HuggingFaceConfig(text, "config.json")).section, section);
}

TEST(HuggingFaceKeys, WhatLeavesTheResultAloneIsPassedOver) {
  for (const std::string family :
       {"llama", "gpt_neox", "gpt2", "qwen2", "qwen3", "mistral", "phi3", "olmo2"}) {
    const HuggingFaceModel model =
        read_with(family,
                  R"("architectures": ["X"], "transformers_version": "4.40.0", "use_cache": true,
           "attention_dropout": 0.1, "initializer_range": 0.02, "pretraining_tp": 2,
           "sliding_window": null, "layer_types": null, "quantization_config": null,
           "num_experts": null, "rope_interleaved": false, "pruned_heads": {},
           "id2label": {"0": "LABEL_0"}, "task_specific_params": {"text": {"max_length": 50}},
           "reorder_and_upcast_attn": true, "n_ctx": 1024, "unsloth_version": "2024.9",
           "tokenizer_class": "X", "pad_token_id": 0, "temperature": 0.7)");
    EXPECT_THAT(model.unknown_keys, testing::IsEmpty());
  }
  EXPECT_NO_THROW(read_with("llama", R"("sliding_window": 4096, "use_sliding_window": false)"));
  EXPECT_NO_THROW(read_with("qwen2",
                            R"("sliding_window": 131072, "max_window_layers": 21,
                               "use_sliding_window": false)"));
  EXPECT_NO_THROW(read_with("qwen3", R"("layer_types": ["full_attention", "full_attention"])"));
}

// As Python writes what it computed.
TEST(HuggingFaceKeys, NumbersArePythons) {
  EXPECT_EQ(
      read_with("llama", R"("max_position_embeddings": 4096.0, "repetition_penalty": Infinity)")
          .facts.sequence_length,
      4096);
  EXPECT_EQ(refused_key("llama", R"("max_position_embeddings": 4096.5)"),
            "max_position_embeddings");
  EXPECT_EQ(refused_key("llama", R"("max_position_embeddings": 4e9)"), "max_position_embeddings");
  EXPECT_EQ(refused_key("llama", R"("max_position_embeddings": NaN)"), "max_position_embeddings");
  EXPECT_EQ(refused_key("llama", R"("rms_norm_eps": NaN)"), "rms_norm_eps");
}

TEST(HuggingFaceKeys, WhatNobodyKnowsIsNamed) {
  EXPECT_THAT(read_with("gpt2", R"("my_key": 3, "my_object": {"a": [1.5, "b"]}, "my_flag": false)")
                  .unknown_keys,
              testing::ElementsAre("config.json: \"my_key\" at byte 103: found 3",
                                   "config.json: \"my_object.a\" at byte 130: found [1.5,\"b\"]"));
}

}  // namespace
}  // namespace tessera
