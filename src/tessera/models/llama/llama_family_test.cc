#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/ir/builder.h"
#include "tessera/models/family.h"
#include "tessera/models/llama/llama.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr LlamaConfig kSmall = {
    .dim = 16, .layers = 2, .heads = 2, .kv_heads = 1, .ffn = 12, .vocab = 30};

std::map<std::string, std::int64_t> sizes_of_parameters(const LlamaConfig& config) {
  GraphBuilder builder("llama", DType::kF32);
  const TensorType ids{.dtype = DType::kI32,
                       .dims = {{.name = "batch", .bound = 1}, {.name = "seq", .bound = 2}}};
  const ModelInputs inputs{.tokens = builder.input("tokens", ids),
                           .positions = builder.input("positions", ids),
                           .documents = builder.input("documents", ids)};
  llama(builder, config, inputs);
  const Graph graph = builder.take();
  std::map<std::string, std::int64_t> sizes;
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    sizes[graph[parameter].name] = graph[parameter].type.num_elements();
  }
  return sizes;
}

TEST(HuggingFace, EveryParameterIsOneWeight) {
  for (const bool tied : {false, true}) {
    LlamaConfig config = kSmall;
    config.tied = tied;
    config.attention_bias = tied;
    config.head_dim = tied ? 14 : 0;
    std::map<std::string, std::int64_t> sizes;
    for (const HuggingFaceWeight& weight : decoder_weights(llama_form(), config)) {
      const std::string& parameter = weight.parts.at(0).parameter;
      EXPECT_TRUE(sizes.emplace(parameter, weight.rows() * weight.columns()).second);
      EXPECT_EQ(weight.name == "lm_head.weight", parameter == "output.weight");
    }
    EXPECT_EQ(sizes, sizes_of_parameters(config));
  }
}

// As view(heads, head / 2, 2, columns).transpose(1, 2) of our rows.
TEST(HuggingFace, PairsOfQueriesAndKeysBecomeHalves) {
  for (const HuggingFaceWeight& weight : decoder_weights(llama_form(), kSmall)) {
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < weight.rows(); ++row) {
      const PartRow ours = our_row(weight, row);
      EXPECT_EQ(their_row(weight, ours), row);
      rows.push_back(ours.row);
    }
    if (weight.name == "model.layers.1.self_attn.q_proj.weight") {
      EXPECT_THAT(rows, ElementsAre(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    } else if (weight.name.ends_with("k_proj.weight")) {
      EXPECT_THAT(rows, ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
    } else if (!weight.name.ends_with("q_proj.weight")) {
      std::vector<std::int64_t> same(rows.size());
      std::iota(same.begin(), same.end(), 0);
      EXPECT_EQ(rows, same) << weight.name;
    }
  }
}

TEST(HuggingFace, ConfigsAreReadAsTheyWereWritten) {
  LlamaConfig second = kSmall;
  second.rope_theta = 10000.0;
  second.norm_eps = 1e-6;
  LlamaConfig stretched = second;
  stretched.tied = true;
  stretched.rope_scaling = true;
  stretched.rope_factor = 32.0;
  LlamaConfig wide = kSmall;
  wide.head_dim = 10;
  wide.attention_bias = true;
  LlamaConfig linear = kSmall;
  linear.rope_linear_factor = 2.5;
  LlamaConfig dynamic = kSmall;
  dynamic.rope_dynamic_factor = 3.0;
  dynamic.rope_original_length = 512;
  LlamaConfig yarn = kSmall;
  yarn.rope_yarn_factor = 4.0;
  yarn.rope_original_length = 64;
  for (const LlamaConfig& config : {kSmall, second, stretched, wide, linear, dynamic, yarn}) {
    const std::string text = decoder_config_text(llama_form(), config, {.sequence_length = 512});
    EXPECT_EQ(decoder_from_hugging_face(llama_form(), HuggingFaceConfig(text, "config.json")),
              config);
  }
}

// The first Llama's config.json has neither kv heads, nor theta, nor scaling.
TEST(HuggingFace, OldConfigsHaveTheirDefaults) {
  const LlamaConfig first = decoder_from_hugging_face(
      llama_form(),
      HuggingFaceConfig(
          R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 96, "vocab_size": 100, "rope_scaling": null, "model_type": "llama"})",
          "config.json"));
  EXPECT_EQ(first.kv_heads, 4);
  EXPECT_EQ(first.rope_theta, 10000.0);
  EXPECT_EQ(first.norm_eps, 1e-6);
  EXPECT_FALSE(first.tied);
  EXPECT_FALSE(first.rope_scaling);
}

// As transformers 5 write it.
TEST(HuggingFace, RotaryParametersMayStandInOneObject) {
  const auto read = [](const std::string& rope) {
    return decoder_from_hugging_face(
        llama_form(),
        HuggingFaceConfig(
            R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 96, "vocab_size": 100, "rope_parameters": )" +
                rope + "}",
            "config.json"));
  };
  const LlamaConfig plain = read(R"({"rope_theta": 500000.0, "rope_type": "default"})");
  EXPECT_EQ(plain.rope_theta, 500000.0);
  EXPECT_FALSE(plain.rope_scaling);
  const LlamaConfig scaled = read(
      R"({"rope_theta": 1000000, "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})");
  EXPECT_EQ(scaled.rope_theta, 1e6);
  EXPECT_TRUE(scaled.rope_scaling);
  EXPECT_EQ(scaled.rope_factor, 32.0);
  EXPECT_EQ(read(R"({"rope_type": "default"}, "rope_theta": 20000.0)").rope_theta, 20000.0);
  EXPECT_EQ(read(R"(null, "rope_theta": 20000.0)").rope_theta, 20000.0);
  const auto message = [&](const std::string& rope) {
    return error_of(ErrorCode::kInvalidData, [&] { read(rope); });
  };
  EXPECT_THAT(
      message(R"({"rope_type": "turn", "rope_theta": 1.0})"),
      HasSubstr("\"rope_parameters.rope_type\" at byte 146: found \"turn\", expected \"llama3\""));
  EXPECT_THAT(message(R"({"full_attention": {"rope_theta": 1.0}})"),
              HasSubstr("\"rope_parameters.rope_theta\": found nothing"));
  EXPECT_THAT(
      message(R"({"rope_theta": 1.0, "partial_rotary_factor": 0.5})"),
      HasSubstr("\"rope_parameters.partial_rotary_factor\" at byte 165: found 0.5, expected 1.0"));
}

TEST(HuggingFace, RefusesWhatNoLlamaHereIs) {
  const auto message = [](const std::string& keys) {
    try {
      decoder_from_hugging_face(
          llama_form(),
          HuggingFaceConfig(
              R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 96, "vocab_size": 100)" +
                  keys + "}",
              "dir/config.json"));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(R"(, "hidden_act": "gelu")"),
            "dir/config.json: \"hidden_act\" at byte 128: found \"gelu\", expected \"silu\"");
  EXPECT_EQ(message(R"(, "head_dim": 15)"),
            "dir/config.json: \"head_dim\" at byte 128: found 15, expected heads of an even size "
            "(rotary positions turn pairs), not of 15");
  EXPECT_EQ(message(R"(, "mlp_bias": true)"),
            "dir/config.json: \"mlp_bias\" at byte 128: found true, expected false");
  EXPECT_EQ(message(R"(, "rope_scaling": {"type": "twisted", "factor": 2.0})"),
            "dir/config.json: \"rope_scaling.type\" at byte 145: found \"twisted\", expected "
            "\"llama3\", \"linear\", \"dynamic\", \"yarn\", \"longrope\" or nothing");
  EXPECT_EQ(message(R"(, "num_key_value_heads": 3)"),
            "dir/config.json: \"num_key_value_heads\" at byte 128: found 3, expected a divisor of "
            "\"num_attention_heads\" = 4");
  EXPECT_EQ(message(R"(, "num_key_value_heads": 0)"),
            "dir/config.json: \"num_key_value_heads\" at byte 128: found 0, expected a whole "
            "number from 1 to "
            "2147483648");
}

TEST(HuggingFace, RefusesWhatWouldNotRunAsItWasTrained) {
  const auto message = [](const std::string& keys) {
    return without_bytes(error_of(ErrorCode::kInvalidData, [&] {
      hugging_face_model(HuggingFaceConfig(
          R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100)" +
              keys + "}",
          "config.json"));
    }));
  };
  EXPECT_EQ(message(R"(, "quantization_config": {"quant_method": "gptq"})"),
            "config.json: \"quantization_config.quant_method\": found \"gptq\", expected weights "
            "that are not quantized");
  EXPECT_EQ(message(R"(, "sliding_window": 4096)"),
            "config.json: \"sliding_window\": found 4096, expected null: attention that sees all "
            "that is before");
  EXPECT_EQ(message(R"(, "rope_theta": 10000, "rope_parameters": {"rope_theta": 20000.0})"),
            "config.json: \"rope_theta\": found 10000, expected 20000, as "
            "\"rope_parameters.rope_theta\" has it");
  for (const char* const ids :
       {"-1", "\"</s>\"", "[1, -2]", "4294967296", "1.5", "-1.0", "[1.5]", "4294967296.0"}) {
    EXPECT_THAT(message(format(R"(, "eos_token_id": {})", ids)),
                HasSubstr("\"eos_token_id\": found "));
  }
}

TEST(HuggingFace, HaveOneOrSeveralTokensThatEndATextOrNone) {
  const auto eos = [](const std::string& ids) {
    const HuggingFaceConfig config(R"({"eos_token_id": )" + ids + "}", "config.json");
    return config.tokens("eos_token_id");
  };
  EXPECT_THAT(eos("null"), IsEmpty());
  EXPECT_THAT(eos("2"), ElementsAre(2));
  EXPECT_THAT(eos("[128001, 128008, 128009]"), ElementsAre(128001, 128008, 128009));
  EXPECT_THAT(eos("2.0"), ElementsAre(2)) << "Python takes them for equal";
  EXPECT_THAT(eos("[2.0, 3]"), ElementsAre(2, 3));
  HuggingFaceConfigText text;
  text.tokens("a", {});
  text.tokens("b", {2});
  text.tokens("c", {2, 3});
  EXPECT_EQ(text.finish(), "{\n  \"a\": null,\n  \"b\": 2,\n  \"c\": [2, 3]\n}\n");
}

TEST(HuggingFace, BrokenConfigsAreRefusedWithTheirPlace) {
  const auto message = [](const std::string& text) {
    return error_of(ErrorCode::kInvalidData, [&] { HuggingFaceConfig(text, "dir/config.json"); });
  };
  EXPECT_THAT(message("{\n\"a\" 3}"),
              AllOf(StartsWith("dir/config.json: not JSON at byte 6: "), HasSubstr("line 2")));
  EXPECT_EQ(message("[]"), "dir/config.json: byte 0: found a JSON array, expected an object");
  EXPECT_EQ(message(R"({"a": 1, "b": {"c": 1, "c": 2}})"),
            "dir/config.json: byte 23: key 'c' appears twice");
  EXPECT_EQ(error_of(ErrorCode::kInvalidData,
                     [] {
                       decoder_from_hugging_face(
                           llama_form(),
                           HuggingFaceConfig(
                               R"({"hidden_size": 20, "num_hidden_layers": 2, "vocab_size": 100,
                               "num_attention_heads": 4, "intermediate_size": 96})",
                               "config.json"));
                     }),
            "config.json: \"num_attention_heads\" at byte 94: found 4, expected heads of an even "
            "size (rotary "
            "positions turn pairs), not of 5");
}

// Such scaling is none, and is written as none.
TEST(HuggingFace, AScaleOfOneIsNone) {
  const LlamaConfig config = decoder_from_hugging_face(
      llama_form(),
      HuggingFaceConfig(
          R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 96, "vocab_size": 100, "rope_scaling": {"rope_type": "llama3",
          "factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}})",
          "config.json"));
  EXPECT_FALSE(config.rope_scaling);
  EXPECT_EQ(
      decoder_from_hugging_face(
          llama_form(),
          HuggingFaceConfig(decoder_config_text(llama_form(), config, {.sequence_length = 512}),
                            "config.json")),
      config);
}

TEST(HuggingFace, ConfigSaysWhatTransformersAsk) {
  using nlohmann::json;
  const json small = json::parse(decoder_config_text(
      llama_form(), kSmall, {.dtype = DType::kF32, .sequence_length = 512, .bos = {3}, .eos = {}}));
  EXPECT_EQ(small.at("architectures"), json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(small.at("model_type"), "llama");
  EXPECT_EQ(small.at("hidden_size"), 16);
  EXPECT_EQ(small.at("head_dim"), 8);
  EXPECT_EQ(small.at("num_attention_heads"), 2);
  EXPECT_EQ(small.at("num_key_value_heads"), 1);
  EXPECT_EQ(small.at("intermediate_size"), 12);
  EXPECT_EQ(small.at("num_hidden_layers"), 2);
  EXPECT_EQ(small.at("vocab_size"), 30);
  EXPECT_EQ(small.at("max_position_embeddings"), 512);
  EXPECT_EQ(small.at("rms_norm_eps"), 1e-5);
  EXPECT_EQ(small.at("rope_theta"), 500000.0);
  EXPECT_TRUE(small.at("rope_theta").is_number_float());
  EXPECT_EQ(small.at("rope_scaling"), nullptr);
  EXPECT_EQ(small.at("tie_word_embeddings"), false);
  EXPECT_EQ(small.at("torch_dtype"), "float32");
  EXPECT_EQ(small.at("bos_token_id"), 3);
  EXPECT_EQ(small.at("eos_token_id"), nullptr);
  // Tied, and with stretched wavelengths.
  const json published = json::parse(decoder_config_text(
      llama_form(), llama_flavor("1B"), {.dtype = DType::kBF16, .sequence_length = 131072}));
  EXPECT_EQ(published.at("tie_word_embeddings"), true);
  EXPECT_EQ(published.at("torch_dtype"), "bfloat16");
  EXPECT_EQ(published.at("rope_scaling").at("rope_type"), "llama3");
  EXPECT_EQ(published.at("rope_scaling").at("factor"), 8.0);
  EXPECT_EQ(published.at("rope_scaling").at("low_freq_factor"), 1.0);
  EXPECT_EQ(published.at("rope_scaling").at("high_freq_factor"), 4.0);
  EXPECT_EQ(published.at("rope_scaling").at("original_max_position_embeddings"), 8192);
}

}  // namespace
}  // namespace tessera
