// config.json of each family: its keys, and what is refused by name.

#include "tessera/models/hugging_face_config.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/models/family.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

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
        EXPECT_EQ(refused_key(family, keys), format("{}.{}", object, type)) << family;
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
            "nothing: it is for what a model computes, and its family here has no such part");
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
  EXPECT_EQ(refused(R"("attn_logit_softcapping": 50.0)"), "attn_logit_softcapping");
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
  EXPECT_EQ(read(R"(, "rope_type": "longrope", "factor": 4.0)" + original, original), section);
  EXPECT_EQ(refused_key("phi3", R"("rope_scaling": {"type": "linear", "factor": 2.0})"),
            "rope_scaling.type");
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
  EXPECT_EQ(refused(lists + original, ""), "original_max_position_embeddings");
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
              testing::ElementsAre(testing::HasSubstr("\"my_flag\""),
                                   "config.json: \"my_key\" at byte 103: found 3",
                                   "config.json: \"my_object.a\" at byte 130: found [1.5,\"b\"]"));
}

// A part that models have unless they say no: false is another model, true is none.
TEST(HuggingFaceKeys, FalseIsNotAlwaysNothing) {
  for (const std::string key :
       {"is_causal", "causal", "use_rope", "final_norm", "scale_attn_weights", "use_swiglu"}) {
    EXPECT_EQ(refused_key("llama", format(R"("{}": false)", key)), key);
    EXPECT_THAT(read_with("llama", format(R"("{}": true)", key)).unknown_keys, testing::IsEmpty());
  }
  // A part that the family lacks, the other way round.
  for (const auto& [family, keys] : std::map<std::string, std::vector<std::string>>{
           {"gpt2", {"use_rope", "use_rms_norm", "use_swiglu"}},
           {"gpt_neox", {"use_rmsnorm", "use_glu"}},
           {"olmo2", {"pre_norm", "do_layer_norm_before"}}}) {
    for (const std::string& key : keys) {
      EXPECT_EQ(refused_key(family, format(R"("{}": true)", key)), key);
      EXPECT_THAT(read_with(family, format(R"("{}": false)", key)).unknown_keys,
                  testing::IsEmpty());
    }
  }
  EXPECT_THAT(
      read_with("llama", R"("is_decoder": false, "use_parallel_residual": false)").unknown_keys,
      testing::IsEmpty());
  EXPECT_THAT(read_with("llama", R"("my_flag": false, "my_list": [])").unknown_keys,
              testing::ElementsAre(testing::ContainsRegex("\"my_flag\" at byte .*found false")));
  EXPECT_THAT(
      read_with("llama", R"("layer_types": ["full_attention", "full_attention"])").unknown_keys,
      testing::IsEmpty());
  EXPECT_EQ(refused_key("llama", R"("layer_types": ["full_attention", "linear_attention"])"),
            "layer_types");
}

}  // namespace
}  // namespace tessera
