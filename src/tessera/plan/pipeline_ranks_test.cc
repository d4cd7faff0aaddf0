#include "tessera/plan/pipeline_ranks.h"

#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"
#include "tessera/data/batch_sampler.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/plan/compile.h"
#include "tessera/state/test_training.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;

Mesh mesh_of(const std::vector<std::int64_t>& levels, const MeshDegrees& degrees) {
  return make_mesh(test_cluster(levels), degrees);
}

TEST(ByPipelineRank, GivesEachRankWhatIsOfItsPlace) {
  const Mesh mesh = mesh_of({2, 2, 2}, {.data = 2, .tensor = 2, .pipeline = 2});
  const ByPipelineRank<std::string> names(mesh, {"first", "last"});
  EXPECT_EQ(names.size(), 2U);
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    // The pipeline is the outermost group.
    EXPECT_EQ(names.place_of(rank), rank < 4 ? 0U : 1U);
    EXPECT_EQ(names.of(rank), rank < 4 ? "first" : "last");
  }
  EXPECT_EQ(names.first_rank(0), 0);
  EXPECT_EQ(names.first_rank(1), 4);
  EXPECT_THAT(std::vector<std::string>(names.begin(), names.end()), ElementsAre("first", "last"));
}

TEST(ByPipelineRank, IsOneForAllWithoutAPipeline) {
  const ByPipelineRank<int> any = 7;
  const ByPipelineRank<int> meshed(mesh_of({2, 2}, {.data = 2, .tensor = 2}), {7});
  for (const ByPipelineRank<int>& one : {any, meshed}) {
    EXPECT_EQ(one.size(), 1U);
    EXPECT_EQ(one.of(3), 7);
    EXPECT_EQ(one.place_of(3), 0U);
    EXPECT_EQ(one.first_rank(0), 0);
  }
}

TEST(ByPipelineRank, RefusesAnotherNumber) {
  const Mesh mesh = mesh_of({4}, {.data = 2, .pipeline = 2});
  EXPECT_THAT(
      error_of(ErrorCode::kInternal, [&] { ByPipelineRank<int>(mesh, std::vector<int>{1, 2, 3}); }),
      EndsWith("found 3 for the 2 pipeline ranks of a mesh"));
}

// A pipeline over several levels has an axis on each.
TEST(PipelinePlace, CountsOverAllLevels) {
  const Mesh mesh = mesh_of({4, 3}, {.data = 2, .pipeline = 6});
  std::multiset<std::int64_t> places;
  for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    EXPECT_EQ(pipeline_place(mesh, rank), rank / 2);
    places.insert(pipeline_place(mesh, rank));
  }
  EXPECT_THAT(places, ElementsAre(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5));
}

// Ranks that differ in their tensor and pipeline coordinates alone read the same sequences, and
// those of each pipeline rank together the whole batch.
TEST(PipelinePlace, ReadsTheSameRows) {
  RunLayout layout;
  layout.mesh = mesh_of({2, 2, 2}, {.data = 2, .tensor = 2, .pipeline = 2});
  EXPECT_EQ(layout.num_data(), 2);
  std::vector<std::int64_t> batch(12);
  std::iota(batch.begin(), batch.end(), std::int64_t{100});
  const auto rows = [&](std::int64_t rank, std::int64_t microbatch) {
    const BatchShare share = {
        .rows = 3, .num_data = layout.num_data(), .place = data_place(layout.mesh, rank)};
    const std::span<const std::int64_t> own = share_of(batch, share, microbatch);
    return std::vector<std::int64_t>(own.begin(), own.end());
  };
  for (const std::int64_t first : {0, 4}) {
    EXPECT_THAT(rows(first, 0), ElementsAre(100, 101, 102));
    EXPECT_THAT(rows(first + 1, 0), ElementsAre(100, 101, 102));  // of another tensor rank
    EXPECT_THAT(rows(first + 2, 0), ElementsAre(103, 104, 105));
    EXPECT_THAT(rows(first + 3, 1), ElementsAre(109, 110, 111));
  }
}

TEST(CompileRun, IsCompileWithoutAPipeline) {
  Plan plan = {.model = tiny_llama(), .sequence_length = 6, .validates = true};
  plan.layout.mesh = mesh_of({2}, {.data = 2});
  const RunPrograms run = compile_run(plan, cpu_target());
  const Programs expected = compile(plan, cpu_target());
  EXPECT_EQ(run.size(), 1U);
  for (const std::int64_t rank : {0, 1}) {
    EXPECT_EQ(to_string(run.of(rank).step), to_string(expected.step));
    EXPECT_EQ(to_string(run.of(rank).validation.value()), to_string(expected.validation.value()));
  }
}

}  // namespace
}  // namespace tessera
