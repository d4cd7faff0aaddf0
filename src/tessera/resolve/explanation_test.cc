#include "tessera/resolve/explanation.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/models/llama/llama.h"
#include "tessera/models/test_experts.h"
#include "tessera/plan/graphs.h"

namespace tessera {
namespace {

// Where a parameter of a small model with 20 experts lies on 4 ranks, experts cut over 2 of them.
std::string place_of(const std::string& name, const std::string& placement) {
  Explanation facts;
  RunLayout& layout = facts.run.plan.layout;
  layout.mesh = make_mesh(test_cluster({2, 2}), {.data = 4, .expert = 2});
  layout.placement = preset(placement, layout.mesh).placement;
  facts.parameters = parameter_inits(training_graph(
      with_experts(
          describe_llama(
              {.dim = 100, .layers = 1, .heads = 2, .kv_heads = 1, .ffn = 20, .vocab = 30}),
          20),
      4,
      8,
      DType::kF32));
  const std::vector<ParameterPlace> places = parameter_places(facts);
  const auto place = std::ranges::find(places, name, &ParameterPlace::name);
  return format("{}, {} of {}, {}{}",
                place->axes,
                place->elements_at_rest,
                place->local.num_elements(),
                place->sliced ? "sliced" : "whole",
                place->buffer ? ", a buffer" : "");
}

// Each over the ranks that do not cut it: slices are blocks of 256 of their own N.
TEST(ParameterPlaces, AreByTheAxesOfEach) {
  EXPECT_EQ(place_of("output.weight", "fsdp"), ", 768 of 3000, sliced");
  EXPECT_EQ(place_of("experts", "fsdp"), "data.pair=2, 512 of 1000, sliced");
  EXPECT_EQ(place_of("experts", "hsdp@pair"), "data.pair=2, 1000 of 1000, whole");
  EXPECT_EQ(place_of("output.weight", "hsdp@pair"), ", 1536 of 3000, sliced");
  EXPECT_EQ(place_of("bias", "fsdp"), "data.pair=2, 10 of 10, whole, a buffer");
  EXPECT_EQ(place_of("mean", "fsdp"), ", 100 of 100, whole, a buffer");
  EXPECT_EQ(place_of("experts", "zero1"), "data.pair=2, 1000 of 1000, whole");
}

}  // namespace
}  // namespace tessera
