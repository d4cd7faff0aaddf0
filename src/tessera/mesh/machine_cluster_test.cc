#include "tessera/mesh/machine_cluster.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::Pair;

// The levels of a machine that hwloc makes up from a description.
std::vector<std::pair<std::string, std::int64_t>> levels_of(const char* description) {
  ::setenv("HWLOC_SYNTHETIC", description, 1);
  std::vector<std::pair<std::string, std::int64_t>> levels;
  for (const Level& level : machine_cluster().levels) {
    levels.emplace_back(level.name, level.size);
  }
  ::unsetenv("HWLOC_SYNTHETIC");
  return levels;
}

TEST(MachineCluster, HasTheLevelsThatDivideTheMachine) {
  EXPECT_THAT(
      levels_of("pack:2 numa:2 l3:2 core:4 pu:2"),
      ElementsAre(Pair("cache", 4), Pair("numa", 2), Pair("package", 2), Pair("machine", 2)));
  EXPECT_THAT(levels_of("pack:1 l3:1 core:8 pu:2"), ElementsAre(Pair("cache", 8)));
  EXPECT_THAT(levels_of("pack:2 numa:1 core:6 pu:1"),
              ElementsAre(Pair("numa", 6), Pair("machine", 2)));
}

TEST(MachineCluster, OfUnlikePartsIsOneLevel) {
  EXPECT_THAT(levels_of("pack:1 core:1 pu:1"), ElementsAre(Pair("machine", 1)));
}

TEST(MachineCluster, OfThisMachineHasItsCores) {
  const Cluster cluster = machine_cluster();
  EXPECT_GE(cluster.num_devices(), 1);
  EXPECT_GT(cluster.device.memory_bytes, 0);
  EXPECT_EQ(parse_cluster(to_toml(cluster), ""), cluster);
}

}  // namespace
}  // namespace tessera
