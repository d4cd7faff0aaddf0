#include "tessera/models/family.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/ir/builder.h"

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
  EXPECT_THAT(message({.name = "phi3", .flavor = "mini-4k", .rope_linear_factor = 2.0}),
              HasSubstr("model.rope_linear_factor = 2, expected 1"));
  EXPECT_THAT(
      message({.name = "gemma2", .flavor = "2B", .attention_softcap = 1e39}),
      HasSubstr("model.attention_softcap = 1e+39, expected a number from 1e-06 to 1000000"));
  EXPECT_THAT(message({.name = "gemma3", .flavor = "1B", .logits_softcap = 1e-60}),
              HasSubstr("model.logits_softcap = 1e-60, expected a number from"));
  EXPECT_THAT(message({.name = "gemma3", .flavor = "1B", .attention_softcap = 50.0}),
              HasSubstr("model.attention_softcap is set"));
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

}  // namespace
}  // namespace tessera
