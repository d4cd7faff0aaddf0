// Layouts change nothing: the same losses and weights under every placement of training state and
// every degree, bit by bit where sums keep their order (DESIGN D3), closely else (D4).

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/placement.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

// Grouped queries, an odd vocabulary, widths that no number of ranks divides.
LlamaConfig odd_llama() {
  return {.dim = 20, .layers = 3, .heads = 2, .kv_heads = 1, .ffn = 27, .vocab = 67};
}

Mesh data_mesh(std::int64_t ranks) {
  const Cluster cluster = load_cluster(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                       format("configs/clusters/virtual-{}.toml", ranks));
  return make_mesh(cluster, {.data = ranks});
}

RankRun make_run(std::int64_t ranks, std::int64_t microbatches) {
  return {.model = odd_llama(),
          .mesh = ranks == 1 ? Mesh{} : data_mesh(ranks),
          .microbatches = microbatches,
          .global_batch = ranks * microbatches};
}

// Every placement.
std::vector<Placement> placements(const Mesh& mesh) {
  std::vector<Placement> all;
  for (const std::int64_t param : data_degrees(mesh)) {
    for (const std::int64_t grad : data_degrees(mesh)) {
      for (const std::int64_t optimizer : data_degrees(mesh)) {
        if (grad % param == 0 && optimizer % grad == 0) {
          all.push_back({.param = param, .secondary = param, .grad = grad, .optimizer = optimizer});
        }
      }
    }
  }
  return all;
}

std::string text(const Placement& placement) {
  return format("({}, {}, {}, {})",
                placement.param,
                placement.secondary,
                placement.grad,
                placement.optimizer);
}

void expect_equal(const RankResult& a, const RankResult& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.grad_norms, b.grad_norms) << what;
  for (const auto& [name, weights] : a.weights) {
    EXPECT_EQ(weights, b.weights.at(name)) << what << ": " << name;
  }
}

// D4: 1e-6 relative at step 1, 1e-4 later.
void expect_close(const RankResult& a, const RankResult& b, const std::string& what) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], (i == 0 ? 1e-6F : 1e-4F) * b.losses[i])
        << what << ": step " << i + 1;
  }
}

class DataParallelTest : public testing::TestWithParam<std::int64_t> {};

INSTANTIATE_TEST_SUITE_P(Ranks, DataParallelTest, testing::Values(2, 4, 6, 8, 12));

TEST_P(DataParallelTest, OneMicrobatchIsBitwiseUnderEveryPlacement) {
  RankRun run = make_run(GetParam(), 1);
  const RankResult ddp = run_ranks(run);
  for (const Placement& placement : placements(run.mesh)) {
    run.placement = placement;
    expect_equal(run_ranks(run), ddp, text(placement));
  }
  RankRun alone = make_run(1, 1);
  alone.global_batch = run.global_batch;
  expect_close(ddp, run_ranks(alone), "one rank");
}

TEST_P(DataParallelTest, SeveralMicrobatchesAreBitwiseAmongEqualGradientDegrees) {
  RankRun run = make_run(GetParam(), 3);
  std::map<std::int64_t, RankResult> by_degree;
  RankRun alone = make_run(1, 3);
  alone.global_batch = run.global_batch;
  const RankResult single = run_ranks(alone);
  for (const Placement& placement : placements(run.mesh)) {
    run.placement = placement;
    const RankResult result = run_ranks(run);
    const auto [found, is_new] = by_degree.try_emplace(placement.grad, result);
    if (is_new) {
      expect_close(result, single, text(placement));
    } else {
      expect_equal(result, found->second, text(placement));
    }
  }
}

TEST(DataParallel, Bf16WithMasterSlices) {
  RankRun run = make_run(4, 2);
  run.dtype = DType::kBF16;
  std::map<std::int64_t, RankResult> by_degree;
  for (const Placement& placement : placements(run.mesh)) {
    run.placement = placement;
    const RankResult result = run_ranks(run);
    const auto [found, is_new] = by_degree.try_emplace(placement.grad, result);
    if (!is_new) {
      expect_equal(result, found->second, text(placement));
    }
  }
}

TEST(DataParallel, RecomputeChangesNothing) {
  RankRun run = make_run(4, 2);
  run.placement = {.param = 4, .secondary = 4, .grad = 4, .optimizer = 4};
  const RankResult kept = run_ranks(run);
  run.recompute = true;
  expect_equal(run_ranks(run), kept, "recompute");
}

struct Degrees {
  std::int64_t data;
  std::int64_t tensor;
};

class TensorParallelTest : public testing::TestWithParam<Degrees> {};

INSTANTIATE_TEST_SUITE_P(
    Degrees,
    TensorParallelTest,
    testing::Values(Degrees{1, 2}, Degrees{2, 2}, Degrees{4, 2}, Degrees{2, 4}),
    [](const auto& degrees) {
      return format("Data{}Tensor{}", degrees.param.data, degrees.param.tensor);
    });

// Column and row products found from the factor rules: close to one rank under every placement,
// bitwise among placements.
TEST_P(TensorParallelTest, AgreesWithOneRank) {
  const auto [data, tensor] = GetParam();
  RankRun run = make_run(data * tensor, 1);
  run.model = {.dim = 48, .layers = 3, .heads = 8, .kv_heads = 4, .ffn = 28, .vocab = 67};
  const Cluster cluster = load_cluster(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                       format("configs/clusters/virtual-{}.toml", data * tensor));
  run.mesh = make_mesh(cluster, {.data = data, .tensor = tensor});
  run.global_batch = 4 * data;
  for (const std::int64_t microbatches : {1, 2}) {
    run.microbatches = microbatches;
    RankRun alone = run;
    alone.mesh = Mesh{};
    const RankResult single = run_ranks(alone);
    std::map<std::int64_t, RankResult> by_degree;
    for (const Placement& placement : placements(run.mesh)) {
      run.placement = placement;
      const RankResult result = run_ranks(run);
      const auto [found, is_new] =
          by_degree.try_emplace(microbatches == 1 ? 0 : placement.grad, result);
      if (is_new) {
        expect_close(result, single, text(placement));
      } else {
        expect_equal(result, found->second, text(placement));
      }
    }
    run.placement = {};
  }
}

}  // namespace
}  // namespace tessera
