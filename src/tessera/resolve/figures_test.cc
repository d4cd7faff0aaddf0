#include "tessera/resolve/figures.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

Cluster cluster_of(std::vector<Level> levels) {
  return {.name = "c", .device = {}, .levels = std::move(levels), .source = "c.toml"};
}

// 8 devices a node, 4 nodes.
Cluster nodes() {
  return cluster_of({{.name = "node", .size = 8, .bandwidth = 80.0, .latency = 1.0},
                     {.name = "net", .size = 4, .bandwidth = 5.0, .shared = true}});
}

TEST(WithFigures, KeepsNamesAndSizesOfTheRun) {
  const Cluster own = cluster_of({{.name = "pair", .size = 2, .bandwidth = 1.0},
                                  {.name = "box", .size = 4},
                                  {.name = "hall", .size = 16, .latency = 9.0}});
  const Cluster found = with_figures(own, nodes(), 16);
  EXPECT_EQ(found.name, "c");
  ASSERT_EQ(found.levels.size(), 3U);
  EXPECT_EQ(found.levels[0], (Level{.name = "pair", .size = 2, .bandwidth = 80.0, .latency = 1.0}));
  EXPECT_EQ(found.levels[1], (Level{.name = "box", .size = 4, .bandwidth = 80.0, .latency = 1.0}));
  EXPECT_EQ(found.levels[2], (Level{.name = "hall", .size = 16, .bandwidth = 5.0, .shared = true}));
  // A level that no rank crosses stays as it is.
  EXPECT_EQ(with_figures(own, nodes(), 8).levels[2], own.levels[2]);
}

TEST(WithFigures, RefusesLevelsThatTheProgramDoesNotHave) {
  const auto expect_error = [](const Cluster& own, std::int64_t ranks, const char* message) {
    EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { with_figures(own, nodes(), ranks); }),
                HasSubstr(message));
  };
  expect_error(local_cluster(64), 64, "c.toml: found 32 devices, expected the 64 ranks of the run");
  expect_error(local_cluster(16),
               16,
               "c.toml: between groups of 1 and of 16 ranks found 2 levels (node, net), where the "
               "run has one level, \"local\"");
  // Groups of 16 have four of the links of the net's groups.
  expect_error(cluster_of({{.name = "a", .size = 16}, {.name = "b", .size = 2}}),
               32,
               "between groups of 1 and of 16 ranks found 2 levels (node, net)");
  const Cluster shared =
      cluster_of({{.name = "a", .size = 8}, {.name = "b", .size = 2}, {.name = "c", .size = 2}});
  expect_error(shared, 32, "between groups of 16 and of 32 ranks found links that other groups");
}

}  // namespace
}  // namespace tessera
