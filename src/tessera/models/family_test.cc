#include "tessera/models/family.h"

#include <cstdint>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
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
}

TEST(ModelFamilies, EveryParameterIsInOneWeight) {
  for (const ModelFamily& family : model_families()) {
    ModelSection section = family.resolve(
        {.name = std::string(family.name), .flavor = std::string(family.flavors[0])});
    section.padded_vocab = family.name == "llama3" ? std::nullopt : section.vocab;
    std::map<std::string, std::int64_t> sizes;
    for (const HuggingFaceWeight& weight : family.hugging_face_weights(section)) {
      for (const HuggingFaceWeight::Part& part : weight.parts) {
        EXPECT_TRUE(sizes.emplace(part.parameter, weight.part_rows() * weight.columns()).second)
            << part.parameter;
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
              "\"gpt2\", \"gpt_neox\"");
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

}  // namespace
}  // namespace tessera
