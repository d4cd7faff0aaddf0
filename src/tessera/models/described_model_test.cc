#include "tessera/models/described_model.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"
#include "tessera/models/family.h"
#include "tessera/plan/graphs.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::string graph_of(const ModelDescription& model) {
  return to_string(training_graph(model, 1, 4, DType::kF32));
}

void expect_same(const ModelDescription& model) {
  const ModelDescription read = described_model(model.json);
  EXPECT_EQ(read.json, model.json);
  EXPECT_EQ(read.vocab, model.vocab);
  EXPECT_EQ(read.num_embedding_parameters, model.num_embedding_parameters);
  EXPECT_EQ(read.adapters, model.adapters);
  EXPECT_EQ(graph_of(read), graph_of(model));
}

TEST(DescribedModel, IsTheOneThatDescribesItselfSo) {
  for (const ModelFamily& family : model_families()) {
    for (const std::string_view flavor : family.flavors) {
      SCOPED_TRACE(flavor);
      const ModelSection section =
          family.resolve({.name = std::string(family.name), .flavor = std::string(flavor)});
      expect_same(family.describe(section));
    }
  }
}

// Sizes that no flavor has, and numbers that only some digits write.
TEST(DescribedModel, KeepsEverySize) {
  const ModelFamily& llama = model_family("llama3");
  expect_same(llama.describe(llama.resolve({.dim = 24,
                                            .layers = 1,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .ffn = 40,
                                            .vocab = 65,
                                            .tied = true,
                                            .rope_scaling = true,
                                            .rope_factor = 32.0,
                                            .rope_theta = 1234567.875,
                                            .norm_eps = 1.1e-6})));
  for (const std::string name : {"gpt2", "neox"}) {
    const ModelFamily& gpt = model_family(name);
    for (const bool bias : {true, false}) {
      ModelSection section = {.name = name, .flavor = "tiny", .bias = bias, .squared_relu = !bias};
      expect_same(gpt.describe(gpt.resolve(section)));
      section.alibi = name == "gpt2" ? std::optional(true) : std::nullopt;
      expect_same(gpt.describe(gpt.resolve(section)));
    }
  }
  for (const std::string name : {"gemma2", "gemma3"}) {
    const ModelFamily& gemma = model_family(name);
    for (const double cap : {0.0, 0.1 + 0.2}) {
      ModelSection section = {.name = name,
                              .dim = 24,
                              .layers = 1,
                              .heads = 4,
                              .ffn = 40,
                              .vocab = 65,
                              .logits_softcap = cap};
      section.attention_softcap = name == "gemma2" ? std::optional(cap) : std::nullopt;
      expect_same(gemma.describe(gemma.resolve(section)));
    }
  }
  const ModelFamily& phi = model_family("phi3");
  expect_same(phi.describe(phi.resolve({.name = "phi3",
                                        .dim = 16,
                                        .layers = 1,
                                        .heads = 4,
                                        .ffn = 40,
                                        .vocab = 65,
                                        .rope_short_factors = {{1.0, 0.1 + 0.2}},
                                        .rope_long_factors = {{1.0 / 3, 1e300}},
                                        .rope_original_length = 3,
                                        .rope_scaled_length = 7})));
  const ModelFamily& neox = model_family("neox");
  expect_same(neox.describe(neox.resolve({.name = "neox",
                                          .dim = 32,
                                          .layers = 2,
                                          .heads = 2,
                                          .ffn = 48,
                                          .vocab = 60,
                                          .padded_vocab = 64,
                                          .rotary_fraction = 0.25,
                                          .norm_eps = 1e-5})));
}

TEST(DescribedModel, HasItsAdapters) {
  const ModelFamily& llama = model_family("llama3");
  ModelDescription model = llama.describe(llama.resolve({.flavor = "debug"}));
  model.json.insert(model.json.size() - 1,
                    R"(,"lora":{"rank":4,"alpha":7.5,"targets":["wq","wo"]})");
  model.adapters = AdapterOptions{.rank = 4, .alpha = 7.5, .targets = {"wq", "wo"}};
  expect_same(model);
}

TEST(DescribedModel, RefusesWhatNoFamilyDescribes) {
  const auto message = [](const std::string& json) {
    return error_of(ErrorCode::kInvalidArgument, [&] { described_model(json); });
  };
  EXPECT_THAT(message("{}"), HasSubstr("expected an object with \"family\""));
  EXPECT_THAT(message("[1]"), HasSubstr("a model described as [1]"));
  EXPECT_THAT(message("{"), HasSubstr("a model described as {"));
  EXPECT_THAT(message(R"({"family":"mamba"})"),
              HasSubstr("\"mamba\", expected one of \"llama\", \"gpt2\", \"neox\", \"qwen2\""));
  EXPECT_THAT(message(R"({"family":"llama","width":3})"),
              HasSubstr("\"width\": 3, which no family"));
  EXPECT_THAT(message(R"({"family":"llama","dim":3.5})"),
              HasSubstr("\"dim\": 3.5, expected an integer"));
  EXPECT_THAT(message(R"({"family":"llama","tied":1})"), HasSubstr("expected true or false"));
  EXPECT_THAT(message(R"({"family":"llama","dim":24,"layers":1,"heads":2,"ffn":40,"vocab":9,)"
                      R"("lora":{"rank":1}})"),
              HasSubstr("expected rank"));
}

}  // namespace
}  // namespace tessera
