#include "tessera/actions/sum_order.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/actions/csv.h"
#include "tessera/actions/schedules.h"
#include "tessera/actions/test_random_table.h"

namespace tessera {
namespace {

std::string order_of(std::string_view text, const std::vector<std::int64_t>& layers) {
  return sum_order(parse_table(text, "table.csv").table, layers);
}

TEST(SumOrder, IsOfEachLayerAndOfTheLosses) {
  EXPECT_EQ(order_of("0F0,0F1,0B1,0B0\n1F0,1F1,1B0,1B1\n", {2, 0}),
            "1 0\n1 0\n1 0\n0 1\n0 1\n");  // embedding, two layers, head, losses
  EXPECT_EQ(order_of("0F0,0F1,0B0,0B1\n1F1,1F0,1I1,1I0,1W0,1W1\n", {0, 1}), "0 1\n0 1\n0 1\n1 0\n");
}

// How layers are split changes it where stages differ alone.
TEST(SumOrder, IsOfLayersNotOfStages) {
  constexpr std::string_view kBothFall = "0F0,0F1,0B1,0B0\n1F1,1F0,1B1,1B0\n";
  EXPECT_EQ(order_of(kBothFall, {1, 3}), order_of(kBothFall, {2, 2}));
  constexpr std::string_view kOneFalls = "0F0,0F1,0B1,0B0\n1F0,1F1,1B0,1B1\n";
  EXPECT_NE(order_of(kOneFalls, {1, 3}), order_of(kOneFalls, {2, 2}));
}

TEST(SumOrder, IsNothingWhereAllRise) {
  // Forwards of other stages than the last, and input gradients, add to no sum.
  EXPECT_EQ(order_of("0F1,0F0,0I1,0I0,0W0,0W1\n1F0,1F1,1I1,1I0,1W0,1W1\n", {1, 1}), "");
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    const ActionTable table = make_table({schedule, 3, default_chunks(schedule), 6});
    const std::vector<std::int64_t> layers(static_cast<std::size_t>(table.stages), 1);
    EXPECT_EQ(sum_order(table, layers), "") << name(schedule);
  }
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<std::int64_t> layers(4, 1);
    EXPECT_EQ(sum_order(random_table(seed, {.ranks = 2, .stages = 4, .microbatches = 3}), layers),
              "");
  }
}

}  // namespace
}  // namespace tessera
