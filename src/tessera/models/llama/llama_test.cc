#include "tessera/models/llama/llama.h"

#include <map>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/ir/builder.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Graph graph_of(const ModelDescription& description) {
  GraphBuilder builder("llama", DType::kBF16);
  const TensorType ids{.dtype = DType::kI32,
                       .dims = {{.name = "batch", .bound = 1}, {.name = "seq", .bound = 2}}};
  const ModelInputs inputs{.tokens = builder.input("tokens", ids),
                           .positions = builder.input("positions", ids),
                           .documents = builder.input("documents", ids)};
  builder.output("hidden", description.model(builder, inputs).hidden);
  return builder.take();
}

std::int64_t num_parameters(const Graph& graph) {
  std::int64_t count = 0;
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    count += graph[parameter].type.num_elements();
  }
  return count;
}

// The published counts, in which a tied head counts once.
TEST(Llama, FlavorsHaveThePublishedNumbersOfParameters) {
  const std::map<std::string_view, std::int64_t> published = {{"debug", 6163712},
                                                              {"1B", 1235814400},
                                                              {"3B", 3212749824},
                                                              {"8B", 8030261248},
                                                              {"70B", 70553706496},
                                                              {"405B", 405853388800}};
  EXPECT_THAT(llama_family().flavors, ElementsAre("debug", "1B", "3B", "8B", "70B", "405B"));
  for (const std::string_view flavor : llama_family().flavors) {
    const Graph graph = graph_of(describe_llama(llama_flavor(flavor)));
    EXPECT_EQ(num_parameters(graph), published.at(flavor)) << flavor;
  }
}

TEST(Llama, TiedModelsHaveNoHeadOfTheirOwn) {
  for (const std::string_view flavor : llama_family().flavors) {
    EXPECT_EQ(llama_flavor(flavor).tied, flavor == "1B" || flavor == "3B") << flavor;
  }
  LlamaConfig config = llama_flavor("debug");
  EXPECT_TRUE(
      graph_of(describe_llama(config)).find_state("output.weight", StateRole::kParameter).valid());
  config.tied = true;
  EXPECT_FALSE(
      graph_of(describe_llama(config)).find_state("output.weight", StateRole::kParameter).valid());
}

TEST(Llama, RefusesSizesThatDoNotFit) {
  const auto message = [](std::int64_t LlamaConfig::* size, std::int64_t value) {
    LlamaConfig config = llama_flavor("debug");
    config.*size = value;
    try {
      describe_llama(config);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message(&LlamaConfig::layers, 0), HasSubstr("model.layers is 0"));
  EXPECT_THAT(message(&LlamaConfig::global_every, 6),
              HasSubstr("model.global_every = 6 without model.window"));
  EXPECT_THAT(message(&LlamaConfig::heads, 15), HasSubstr("model.heads = 15 does not divide"));
  EXPECT_THAT(message(&LlamaConfig::kv_heads, 5), HasSubstr("model.kv_heads = 5 does not divide"));
  EXPECT_THAT(message(&LlamaConfig::dim, 240), HasSubstr("= 15 is odd"));
}

}  // namespace
}  // namespace tessera
