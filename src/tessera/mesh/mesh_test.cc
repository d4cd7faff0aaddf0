#include "tessera/mesh/mesh.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/mesh/placement.h"
#include "tessera/mesh/random_mesh.h"

namespace tessera {
namespace {

using testing::ElementsAre;

// "tensor.pair:2*1@pair": name, size, stride, level of each axis.
std::vector<std::string> axes(const Mesh& mesh) {
  std::vector<std::string> texts;
  for (const MeshAxis& axis : mesh.axes) {
    texts.push_back(format("{}:{}*{}@{}", axis.name, axis.size, axis.stride, axis.level));
  }
  return texts;
}

Mesh mesh_of(const std::vector<std::int64_t>& sizes, const MeshDegrees& degrees) {
  return make_mesh(test_cluster(sizes), degrees);
}

std::string refusal(const std::vector<std::int64_t>& sizes, const MeshDegrees& degrees) {
  return error_of(ErrorCode::kInvalidConfig, [&] { mesh_of(sizes, degrees); });
}

TEST(MakeMesh, CutsGroupsAlongLevels) {
  EXPECT_THAT(axes(mesh_of({2, 2, 3}, {.data = 6, .tensor = 2})),
              ElementsAre("tensor:2*1@pair", "data.node:2*2@node", "data.cluster:3*4@cluster"));
  EXPECT_THAT(axes(mesh_of({2, 2, 3}, {.data = 3, .tensor = 4})),
              ElementsAre("tensor.pair:2*1@pair", "tensor.node:2*2@node", "data:3*4@cluster"));
  EXPECT_THAT(axes(mesh_of({2, 2, 3}, {.data = 12})),
              ElementsAre("data.pair:2*1@pair", "data.node:2*2@node", "data.cluster:3*4@cluster"));
  EXPECT_THAT(axes(mesh_of({2}, {.data = 2})), ElementsAre("data:2*1@pair"));
}

TEST(MakeMesh, OrdersGroupsInsideOut) {
  const Mesh mesh = mesh_of({2, 8, 4}, {.data = 4, .tensor = 2, .context = 4, .pipeline = 2});
  EXPECT_THAT(axes(mesh),
              ElementsAre("tensor:2*1@pair",
                          "context:4*2@node",
                          "data.node:2*8@node",
                          "data.cluster:2*16@cluster",
                          "pipeline:2*32@cluster"));
  EXPECT_EQ(mesh.num_ranks(), 64);
  EXPECT_THAT(mesh.levels, ElementsAre("pair", "node", "cluster"));
  EXPECT_EQ(mesh.axes[1].group, AxisGroup::kContext);
  EXPECT_EQ(mesh.axes[4].group, AxisGroup::kPipeline);
}

TEST(MakeMesh, PlacesExpertsWithinContextAndData) {
  const auto experts = [](std::int64_t expert) {
    const Mesh mesh = mesh_of({2, 8, 4}, {.data = 16, .tensor = 2, .context = 2, .expert = expert});
    std::vector<std::string> texts = axes(mesh);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      texts[i] += mesh.axes[i].expert ? " expert" : "";
    }
    EXPECT_EQ(mesh.num_ranks(), 64);
    return texts;
  };
  EXPECT_EQ(experts(1), axes(mesh_of({2, 8, 4}, {.data = 16, .tensor = 2, .context = 2})));
  EXPECT_THAT(experts(8),
              ElementsAre("tensor:2*1@pair",
                          "context:2*2@node expert",
                          "data.node:4*4@node expert",
                          "data.cluster:4*16@cluster"));
  EXPECT_THAT(experts(4),
              ElementsAre("tensor:2*1@pair",
                          "context:2*2@node expert",
                          "data.node.expert:2*4@node expert",
                          "data.node:2*8@node",
                          "data.cluster:4*16@cluster"));
  // Whoever cuts an axis leaves every rank in its place.
  const Mesh whole = mesh_of({2, 8, 4}, {.data = 16, .tensor = 2, .context = 2});
  const Mesh cut = mesh_of({2, 8, 4}, {.data = 16, .tensor = 2, .context = 2, .expert = 4});
  EXPECT_EQ(whole.members(std::vector<std::size_t>{2}, 5),
            cut.members(std::vector<std::size_t>{2, 3}, 5));
  EXPECT_EQ(data_degrees(cut), data_degrees(whole));
  EXPECT_EQ(refusal({2, 8, 4}, {.data = 16, .tensor = 2, .context = 2, .expert = 3}),
            "expert degree 3 does not fit the context and data ranks; these would: 1, 2, 4, 8, "
            "16, 32");
  EXPECT_EQ(refusal({2, 2}, {.data = 2, .tensor = 2, .expert = 4}),
            "expert degree 4 does not fit the context and data ranks; these would: 1, 2");
  EXPECT_EQ(refusal({2}, {.data = 2, .expert = 0}),
            "expert degree 0 does not fit the context and data ranks; these would: 1, 2");
}

TEST(MakeMesh, CutsTheOutermostLevelToTheRanksPresent) {
  EXPECT_THAT(axes(mesh_of({2, 4, 9408}, {.data = 6})),
              ElementsAre("data.pair:2*1@pair", "data.node:3*2@node"));
  EXPECT_THAT(axes(mesh_of({2, 4, 9408}, {.data = 24})),
              ElementsAre("data.pair:2*1@pair", "data.node:4*2@node", "data.cluster:3*8@cluster"));
  EXPECT_THAT(axes(mesh_of({8, 2048}, {.data = 3})), ElementsAre("data:3*1@pair"));
  EXPECT_THAT(axes(mesh_of({8, 2048}, {.data = 12, .tensor = 2})),
              ElementsAre("tensor:2*1@pair", "data.pair:4*2@pair", "data.node:3*8@node"));
}

TEST(MakeMesh, OneRankHasNoAxes) {
  const Mesh mesh = mesh_of({2, 2}, {});
  EXPECT_TRUE(mesh.axes.empty());
  EXPECT_EQ(mesh.num_ranks(), 1);
  EXPECT_TRUE(mesh.coordinates(0).empty());
  EXPECT_THAT(mesh.members({}, 0), ElementsAre(0));
}

TEST(MakeMesh, ALevelOfOneGroupHasNoAxis) {
  EXPECT_THAT(axes(mesh_of({1, 4, 1}, {.data = 4})), ElementsAre("data:4*1@node"));
}

TEST(MakeMesh, SaysWhichDegreesWouldFit) {
  EXPECT_EQ(refusal({2, 2, 3}, {.data = 4, .tensor = 3}),
            "tensor degree 3 does not fit the levels of cluster \"test\": 3 ranks to place on the "
            "2 that are left of level \"pair\"; among as many ranks these would fit: 1, 2, 4, 12");
  EXPECT_EQ(refusal({8, 6}, {.data = 16, .tensor = 3}),
            "tensor degree 3 does not fit the levels of cluster \"test\": 3 ranks to place on the "
            "8 that are left of level \"pair\"; among as many ranks these would fit: 1, 2, 4, 8, "
            "16, 24, 48");
  EXPECT_EQ(refusal({2, 2, 3}, {.data = 2, .tensor = 2, .context = 3}),
            "context degree 3 does not fit the levels of cluster \"test\": 3 ranks to place on "
            "the 2 that are left of level \"node\"; among as many ranks these would fit: 1, 2, 6");
  EXPECT_EQ(refusal({2, 4, 9408}, {.data = 25088, .tensor = 3}),
            "tensor degree 3 does not fit the levels of cluster \"test\": 3 ranks to place on the "
            "2 that are left of level \"pair\"; among as many ranks these would fit: 1, 2, 4, 8, "
            "16, 24, 32, 48, 56, 64, 96, 112, 128, 168, 192, 224, ..., 75264");
}

TEST(MakeMesh, EveryDegreeThatItNamesFits) {
  for (const std::int64_t tensor : {1, 2, 4, 8, 16, 24, 48}) {
    EXPECT_EQ(mesh_of({8, 6}, {.data = 48 / tensor, .tensor = tensor}).num_ranks(), 48);
  }
}

TEST(MakeMesh, RefusesRanksThatDoNotFillGroups) {
  EXPECT_EQ(refusal({2, 4, 9408}, {.data = 6, .tensor = 2}),
            "tensor 2 x data 6 is 12 ranks, which do not fill whole groups of 8 devices (level "
            "\"node\" of cluster \"test\"); 8 or 16 ranks would");
  EXPECT_EQ(refusal({2, 2, 3}, {.data = 5}),
            "data 5 is 5 ranks, which do not fill whole groups of 2 devices (level \"pair\" of "
            "cluster \"test\"); 4 or 8 ranks would");
  EXPECT_EQ(refusal({2, 2}, {.data = 3}),
            "data 3 is 3 ranks, which do not fill whole groups of 2 devices (level \"pair\" of "
            "cluster \"test\"); 2 or 4 ranks would");
}

TEST(MakeMesh, RefusesDegreesThatTheClusterLacks) {
  EXPECT_EQ(refusal({2, 2}, {.data = 0}), "data degree 0, expected at least 1");
  EXPECT_EQ(refusal({2, 2}, {.pipeline = -2}), "pipeline degree -2, expected at least 1");
  EXPECT_EQ(refusal({2, 2}, {.data = 4, .tensor = 2}),
            "tensor 2 x data 4 needs more ranks than the 4 devices of cluster \"test\"; lower a "
            "degree or name a larger cluster");
  EXPECT_EQ(refusal({2, 2}, {.data = std::int64_t{1} << 62, .tensor = 4}),
            "tensor 4 x data 4611686018427387904 needs more ranks than the 4 devices of cluster "
            "\"test\"; lower a degree or name a larger cluster");
}

TEST(Mesh, MembersOfAGroup) {
  const Mesh mesh = mesh_of({2, 2, 3}, {.data = 6, .tensor = 2});
  const std::vector<std::size_t> tensor = {0};
  const std::vector<std::size_t> data = {1, 2};
  const std::vector<std::size_t> data_major_first = {2, 1};
  EXPECT_THAT(mesh.members(tensor, 7), ElementsAre(6, 7));
  EXPECT_THAT(mesh.members(data, 5), ElementsAre(1, 3, 5, 7, 9, 11));
  EXPECT_THAT(mesh.members(data_major_first, 5), ElementsAre(1, 5, 9, 3, 7, 11));
  EXPECT_THAT(mesh.members({}, 5), ElementsAre(5));
}

TEST(Mesh, RefusesWhatItLacks) {
  const Mesh mesh = mesh_of({2, 2, 3}, {.data = 6, .tensor = 2});
  constexpr ErrorCode kCode = ErrorCode::kInvalidArgument;
  const std::vector<std::size_t> twice = {1, 1};
  const std::vector<std::size_t> unknown = {3};
  const std::vector<std::int64_t> few = {0};
  const std::vector<std::int64_t> outside = {0, 2, 0};
  EXPECT_EQ(error_of(kCode, [&] { mesh.coordinates(12); }), "rank 12 of a mesh of 12 ranks");
  EXPECT_EQ(error_of(kCode, [&] { mesh.coordinates(-1); }), "rank -1 of a mesh of 12 ranks");
  EXPECT_EQ(error_of(kCode, [&] { mesh.rank_at(few); }), "1 coordinates for a mesh of 3 axes");
  EXPECT_EQ(error_of(kCode, [&] { mesh.rank_at(outside); }),
            "coordinate 2 on axis \"data.node\" of size 2");
  EXPECT_EQ(error_of(kCode, [&] { mesh.members(unknown, 0); }), "axis 3 of a mesh of 3 axes");
  EXPECT_EQ(error_of(kCode, [&] { mesh.members(twice, 0); }), "axis \"data.node\" is listed twice");
}

TEST(RandomMeshes, AxesAreTheDigitsOfTheRank) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const RandomMesh random = random_mesh(seed);
    const Mesh& mesh = random.mesh;
    SCOPED_TRACE(testing::PrintToString(axes(mesh)));
    std::array<std::int64_t, 4> product = {1, 1, 1, 1};
    std::int64_t stride = 1;
    std::set<std::string> names;
    for (const MeshAxis& axis : mesh.axes) {
      EXPECT_GT(axis.size, 1);
      EXPECT_EQ(axis.stride, stride);
      EXPECT_TRUE(names.insert(axis.name).second);
      stride *= axis.size;
      product.at(static_cast<std::size_t>(axis.group)) *= axis.size;
    }
    const MeshDegrees& degrees = random.degrees;
    EXPECT_THAT(product,
                ElementsAre(degrees.tensor, degrees.context, degrees.data, degrees.pipeline));
    EXPECT_EQ(mesh.num_ranks(), stride);
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      EXPECT_EQ(mesh.rank_at(mesh.coordinates(rank)), rank);
    }
  }
}

// Neighbours on an axis lie in one group of its level, and in different groups of the level below.
TEST(RandomMeshes, AxesLieInTheirLevels) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const RandomMesh random = random_mesh(seed);
    for (const MeshAxis& axis : random.mesh.axes) {
      std::int64_t below = 1;
      std::size_t level = 0;
      while (random.cluster.levels[level].name != axis.level) {
        below *= random.cluster.levels[level].size;
        ++level;
      }
      const std::int64_t inside = below * random.cluster.levels[level].size;
      EXPECT_EQ(axis.stride % below, 0) << axis.name;
      EXPECT_LE(axis.stride * axis.size, inside) << axis.name;
    }
  }
}

// The axes whose bits are set, of a number that counts through all subsets.
std::vector<std::size_t> axes_in(std::size_t subset, const Mesh& mesh) {
  std::vector<std::size_t> listed;
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if ((subset >> axis & 1) != 0) {
      listed.push_back(axis);
    }
  }
  return listed;
}

// How many of the groups along the listed axes each rank is in; each group is asked of all members.
std::vector<int> groups_of_ranks(const Mesh& mesh, const std::vector<std::size_t>& listed) {
  std::vector<int> groups(static_cast<std::size_t>(mesh.num_ranks()));
  for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    const std::vector<std::int64_t> group = mesh.members(listed, rank);
    EXPECT_TRUE(std::ranges::is_sorted(group));
    EXPECT_TRUE(std::ranges::binary_search(group, rank));
    for (const std::int64_t member : group) {
      EXPECT_EQ(mesh.members(listed, member), group);
      groups[static_cast<std::size_t>(member)] += group.front() == rank ? 1 : 0;
    }
  }
  return groups;
}

TEST(RandomMeshes, MembersPartitionTheRanks) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Mesh mesh = random_mesh(seed).mesh;
    for (std::size_t subset = 0; subset >> mesh.axes.size() == 0; ++subset) {
      EXPECT_THAT(groups_of_ranks(mesh, axes_in(subset, mesh)), testing::Each(1));
    }
  }
}

}  // namespace
}  // namespace tessera
