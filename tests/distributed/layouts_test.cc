// Layouts change nothing: the same losses and weights under every placement of training state and
// every degree, bit by bit where sums keep their order (docs/design/determinism.md, D3), closely
// else (D4).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/ir/adapters.h"
#include "tessera/mesh/placement.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

// Many ranks have few cores in turn: what a few steps show of them, ten show of four ranks.
std::int64_t some_steps(std::int64_t most, std::int64_t ranks) {
  constexpr std::int64_t kFew = 4;
  return ranks > 4 ? std::min(most, kFew) : most;
}

RankRun make_run(std::int64_t ranks, std::int64_t microbatches) {
  return {.model = odd_llama(),
          .mesh = ranks == 1 ? Mesh{} : virtual_mesh(ranks),
          .microbatches = microbatches,
          .global_batch = ranks * microbatches,
          .steps = some_steps(10, ranks)};
}

std::string text(const Placement& placement) {
  return format("({}, {}, {}, {})",
                placement.param,
                placement.secondary,
                placement.grad,
                placement.optimizer);
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
  alone.steps = run.steps;
  expect_close(ddp, run_ranks(alone), "one rank");
}

TEST_P(DataParallelTest, SeveralMicrobatchesAreBitwiseAmongEqualGradientDegrees) {
  RankRun run = make_run(GetParam(), 3);
  std::map<std::int64_t, RankResult> by_degree;
  RankRun alone = make_run(1, 3);
  alone.global_batch = run.global_batch;
  alone.steps = run.steps;
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

// The presets by name, on full-precision wires, and topo with a second copy of the parameters.
TEST_P(DataParallelTest, PresetsComputeTheSame) {
  for (const std::int64_t microbatches : {1, 3}) {
    RankRun run = make_run(GetParam(), microbatches);
    std::map<std::int64_t, RankResult> by_degree;
    const auto check = [&](const Placement& placement) {
      run.placement = placement;
      const RankResult result = run_ranks(run);
      const auto [found, is_new] =
          by_degree.try_emplace(microbatches == 1 ? 0 : placement.grad, result);
      if (!is_new) {
        expect_equal(result, found->second, text(placement));
      }
    };
    for (const Placement& placement : preset_placements(run.mesh)) {
      check(placement);
    }
  }
}

// A second output of the training graph: the run stays as it was, and the output is summed over
// microbatches and ranks as the loss is.
TEST(DataParallel, AStatisticIsSummedAsTheLossIs) {
  for (const std::int64_t microbatches : {1, 3}) {
    for (const std::int64_t tensor : {1, 2}) {
      RankRun run = make_run(4, microbatches);
      run.other = odd_model("llama3");
      run.mesh = virtual_mesh(4, tensor);
      run.steps = 3;
      run.overlap = true;
      for (const Placement& placement : placements(run.mesh)) {
        run.placement = placement;
        run.loss_twice = false;
        const RankResult once = run_ranks(run);
        run.loss_twice = true;
        const RankResult twice = run_ranks(run);
        expect_equal(twice, once, text(placement));
        EXPECT_EQ(twice.statistics, twice.losses) << text(placement);
      }
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

TEST(DataParallel, ASecondaryCopyForBackwardAloneChangesNothing) {
  for (const std::int64_t microbatches : {1, 3}) {
    RankRun run = make_run(8, microbatches);
    const std::vector<std::int64_t> degrees = data_degrees(run.mesh);
    for (const std::int64_t secondary : degrees) {
      if (secondary == degrees.back()) {
        continue;
      }
      const std::int64_t all = degrees.back();
      run.placement = {.param = all, .secondary = secondary, .grad = all, .optimizer = all};
      run.secondary_use = SecondaryUse::kAll;
      const RankResult expected = run_ranks(run);
      run.secondary_use = SecondaryUse::kBackward;
      const RankResult found = run_ranks(run);
      expect_equal(found, expected, text(run.placement));
      EXPECT_NE(found.sent, expected.sent);
    }
  }
}

TEST(DataParallel, Bf16MomentsAreBitwiseUnderEveryPlacement) {
  RankRun run = make_run(4, 1);
  const RankResult exact = run_ranks(run);
  run.moments = DType::kBF16;
  const RankResult rounded = run_ranks(run);
  const auto weight = [](const RankResult& result) {
    return result.states.at({"tok_embeddings.weight", TensorRole::kParameter});
  };
  EXPECT_NE(weight(rounded), weight(exact));
  for (std::size_t i = 0; i < exact.losses.size(); ++i) {
    EXPECT_NEAR(rounded.losses[i], exact.losses[i], 1e-2F * exact.losses[i]) << "step " << i + 1;
  }
  for (const Placement& placement : placements(run.mesh)) {
    run.placement = placement;
    expect_equal(run_ranks(run), rounded, text(placement));
  }
}

TEST(DataParallel, RecomputeChangesNothing) {
  RankRun run = make_run(4, 2);
  run.placement = {.param = 4, .secondary = 4, .grad = 4, .optimizer = 4};
  const RankResult kept = run_ranks(run);
  run.recompute = true;
  expect_equal(run_ranks(run), kept, "recompute");
}

class OverlapTest : public testing::TestWithParam<std::int64_t> {};

INSTANTIATE_TEST_SUITE_P(Ranks, OverlapTest, testing::Values(2, 4, 8));

// State's collectives beside the computation: the same bits, whatever waits for what.
TEST_P(OverlapTest, ChangesNothing) {
  for (const std::int64_t microbatches : {1, 3}) {
    RankRun run = make_run(GetParam(), microbatches);
    run.steps = 3;
    const std::vector<std::int64_t> degrees = data_degrees(run.mesh);
    const std::int64_t first = degrees[1];
    const std::int64_t middle = degrees[degrees.size() / 2];
    const std::int64_t all = degrees.back();
    for (const Placement& placement :
         {Placement{.param = all, .secondary = all, .grad = all, .optimizer = all},
          Placement{.param = first, .secondary = first, .grad = middle, .optimizer = all},
          Placement{.param = 1, .secondary = 1, .grad = all, .optimizer = all}}) {
      run.placement = placement;
      run.overlap = false;
      const RankResult in_order = run_ranks(run);
      run.overlap = true;
      expect_equal(run_ranks(run), in_order, text(placement));
    }
  }
}

// Several microbatches in flight, as in a pipeline: the same bits, with each one's gathers and
// reductions apart.
TEST(Overlap, ChangesNothingWithMicrobatchesInFlight) {
  for (const Placement& placement :
       {Placement{.param = 2, .secondary = 2, .grad = 2, .optimizer = 2},
        Placement{.param = 1, .secondary = 1, .grad = 2, .optimizer = 2},
        Placement{.param = 1, .secondary = 1, .grad = 1, .optimizer = 1}}) {
    RankRun run = make_run(2, 6);
    run.steps = 3;
    run.placement = placement;
    const RankResult one = run_ranks(run);
    run.overlap = true;
    for (const std::int64_t layers : {1, 2, 9}) {
      for (const std::int64_t in_flight : {2, 3, 6}) {
        run.overlap_layers = layers;
        run.in_flight = in_flight;
        expect_equal(run_ranks(run),
                     one,
                     format("{}, {} in flight, {} layers", text(placement), in_flight, layers));
      }
    }
  }
}

TEST(Overlap, ChangesNothingWithRecomputeSecondaryCopiesAndWiderWindows) {
  RankRun run = make_run(4, 3);
  run.steps = 3;
  run.dtype = DType::kBF16;
  for (const Placement& placement :
       {Placement{.param = 4, .secondary = 2, .grad = 4, .optimizer = 4},
        Placement{.param = 2, .secondary = 1, .grad = 2, .optimizer = 4}}) {
    run.placement = placement;
    for (const bool recompute : {false, true}) {
      run.recompute = recompute;
      run.overlap = false;
      const RankResult in_order = run_ranks(run);
      run.overlap = true;
      for (const std::int64_t layers : {1, 5}) {
        run.overlap_layers = layers;
        expect_equal(run_ranks(run), in_order, format("{}, {} layers", text(placement), layers));
      }
    }
  }
}

struct TensorCase {
  std::int64_t data;
  std::int64_t tensor;
  bool sequence_parallel;
};

std::string case_name(const testing::TestParamInfo<TensorCase>& info) {
  return format("Data{}Tensor{}{}",
                info.param.data,
                info.param.tensor,
                info.param.sequence_parallel ? "Sequence" : "");
}

// Grouped queries; vocabulary, feed-forward and sequence divide by no number of ranks.
RankRun tensor_run(const TensorCase& degrees) {
  return {.model = {.dim = 48, .layers = 3, .heads = 8, .kv_heads = 4, .ffn = 27, .vocab = 67},
          .mesh = virtual_mesh(degrees.data * degrees.tensor, degrees.tensor),
          .global_batch = 4 * degrees.data,
          .sequence_length = 15,
          .steps = some_steps(20, degrees.data * degrees.tensor),
          .sequence_parallel = degrees.sequence_parallel};
}

RankRun alone(RankRun run) {
  run.mesh = {};
  run.placement = {};
  return run;
}

// Gradients of the head, which is the table of embeddings, add up by use over microbatches.
TEST(DataParallel, TiedWeightsAreBitwiseAmongEqualGradientDegrees) {
  for (const std::int64_t microbatches : {1, 4}) {
    RankRun run = make_run(4, microbatches);
    run.model.tied = true;
    run.steps = 4;
    const RankResult single = run_ranks(alone(run));
    std::map<std::int64_t, RankResult> by_degree;
    for (const Placement& placement : placements(run.mesh)) {
      run.placement = placement;
      run.overlap = false;
      const RankResult result = run_ranks(run);
      const std::int64_t degree = microbatches == 1 ? 0 : placement.grad;
      expect_equal(result, by_degree.try_emplace(degree, result).first->second, text(placement));
      expect_close(result, single, text(placement));
      run.overlap = true;
      expect_equal(run_ranks(run), result, text(placement) + ", overlap");
    }
  }
}

// ddp, the Frontier scheme by name where the mesh has its levels, its shape (parameters and
// gradients cut inside a level), and fsdp.
std::vector<Placement> some_placements(const Mesh& mesh) {
  const std::vector<std::int64_t> degrees = data_degrees(mesh);
  const std::int64_t inner = degrees[degrees.size() > 1 ? 1 : 0];
  const std::int64_t all = degrees.back();
  std::vector<Placement> some = {{}};
  if (std::ranges::find(mesh.levels, "node") != mesh.levels.end()) {
    some.push_back(preset("topo", mesh).placement);
  }
  if (inner < all) {
    some.push_back({.param = inner, .secondary = inner, .grad = inner, .optimizer = all});
  }
  if (all > 1) {
    some.push_back({.param = all, .secondary = all, .grad = all, .optimizer = all});
  }
  return some;
}

class TensorParallelTest : public testing::TestWithParam<TensorCase> {};

INSTANTIATE_TEST_SUITE_P(Degrees,
                         TensorParallelTest,
                         testing::Values(TensorCase{1, 2, false},
                                         TensorCase{1, 2, true},
                                         TensorCase{1, 4, false},
                                         TensorCase{1, 4, true},
                                         TensorCase{2, 2, false},
                                         TensorCase{2, 2, true},
                                         TensorCase{4, 2, false},
                                         TensorCase{4, 2, true},
                                         TensorCase{2, 4, false},
                                         TensorCase{2, 4, true}),
                         case_name);

// All that the factor rules find (column and row products, a cut vocabulary, a cut sequence) is
// close to one rank under every placement, and bitwise equal among placements.
TEST_P(TensorParallelTest, AgreesWithOneRank) {
  RankRun run = tensor_run(GetParam());
  for (const std::int64_t microbatches : {1, 2}) {
    run.microbatches = microbatches;
    const RankResult single = run_ranks(alone(run));
    std::map<std::int64_t, RankResult> by_degree;
    for (const Placement& placement : some_placements(run.mesh)) {
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
  }
}

// The gradients of a tied embedding, from both of its uses, lie alike.
TEST_P(TensorParallelTest, AgreesWithOneRankWhereTheHeadIsTheEmbedding) {
  RankRun run = tensor_run(GetParam());
  run.model.tied = true;
  run.microbatches = 2;
  const RankResult result = run_ranks(run);
  expect_close(result, run_ranks(alone(run)), "tied");
}

// GPT-2 and GPT-NeoX know as little of layouts: biases of cut products count once, learned
// positions, a part of each head that turns, two branches that are folded together, and a padded
// vocabulary that does not divide.
class FamilyLayoutTest : public testing::TestWithParam<TensorCase> {};

INSTANTIATE_TEST_SUITE_P(Degrees,
                         FamilyLayoutTest,
                         testing::Values(TensorCase{2, 1, false},
                                         TensorCase{1, 2, false},
                                         TensorCase{1, 2, true},
                                         TensorCase{1, 4, true},
                                         TensorCase{2, 2, true}),
                         case_name);

TEST_P(FamilyLayoutTest, AgreesWithOneRank) {
  for (const char* name : {"gpt2", "neox"}) {
    RankRun run = tensor_run(GetParam());
    run.other = odd_model(name);
    run.microbatches = 2;
    const RankResult single = run_ranks(alone(run));
    for (const Placement& placement : some_placements(run.mesh)) {
      run.placement = placement;
      expect_close(run_ranks(run), single, format("{} {}", name, text(placement)));
    }
  }
}

// Low-rank adapters of all weights, or of some, in place of training everything.
class AdapterLayoutTest : public testing::TestWithParam<TensorCase> {};

INSTANTIATE_TEST_SUITE_P(Degrees,
                         AdapterLayoutTest,
                         testing::Values(TensorCase{2, 1, false},
                                         TensorCase{1, 2, false},
                                         TensorCase{1, 2, true},
                                         TensorCase{2, 2, false},
                                         TensorCase{4, 2, true}),
                         case_name);

TEST_P(AdapterLayoutTest, AgreesWithOneRank) {
  for (const char* name : {"llama3", "gpt2", "neox"}) {
    RankRun run = tensor_run(GetParam());
    run.other = odd_model(name, attention_and_feed_forward());
    run.steps = some_steps(6, run.mesh.num_ranks());
    for (const std::int64_t microbatches : {1, 2}) {
      run.microbatches = microbatches;
      const RankResult single = run_ranks(alone(run));
      std::map<std::int64_t, RankResult> by_degree;
      std::vector<Placement> placements = some_placements(run.mesh);
      const std::int64_t all = data_degrees(run.mesh).back();
      placements.push_back({.optimizer = all});                             // zero1
      placements.push_back({.param = all, .grad = all, .optimizer = all});  // a whole second copy
      for (const Placement& placement : placements) {
        run.placement = placement;
        const RankResult result = run_ranks(run);
        const auto [found, is_new] =
            by_degree.try_emplace(microbatches == 1 ? 0 : placement.grad, result);
        if (is_new) {
          expect_close(result, single, format("{} {}", name, text(placement)));
        } else {
          expect_equal(result, found->second, format("{} {}", name, text(placement)));
        }
      }
    }
  }
}

TEST(Adapters, RecomputeAndOverlapChangeNothing) {
  for (const std::vector<std::string>& targets :
       {attention_and_feed_forward(), std::vector<std::string>{"wk", "w2"}}) {
    RankRun run = tensor_run({.data = 2, .tensor = 2, .sequence_parallel = true});
    run.other = odd_model("llama3", targets);
    run.placement = {.param = 2, .secondary = 2, .grad = 2, .optimizer = 2};
    run.steps = 4;
    run.microbatches = 2;
    const RankResult kept = run_ranks(run);
    run.recompute = true;
    expect_equal(run_ranks(run), kept, "recompute");
    run.overlap = true;
    expect_equal(run_ranks(run), kept, "recompute and overlap");
  }
}

// In slices, and with a second copy that no update writes.
TEST(Adapters, FrozenWeightsStay) {
  RankRun run = make_run(4, 2);
  run.other = odd_model("llama3", attention_and_feed_forward());
  run.steps = 1;
  const RankResult first = run_ranks(run);
  run.steps = 4;
  run.placement = {.param = 4, .secondary = 2, .grad = 4, .optimizer = 4};
  const RankResult later = run_ranks(run);
  for (const auto& [key, bytes] : first.states) {
    EXPECT_EQ(bytes == later.states.at(key), !is_adapter(key.first)) << key.first;
  }
}

// Few tokens in odd widths, for which a library of products has several kernels to choose from.
TEST(Families, RecomputeChangesNothing) {
  for (const char* name : {"llama3", "gpt2", "neox"}) {
    for (const std::int64_t length : {5, 8}) {
      for (const bool is_adapted : {false, true}) {
        RankRun run = make_run(2, 2);
        run.other =
            odd_model(name, is_adapted ? attention_and_feed_forward() : std::vector<std::string>());
        run.sequence_length = length;
        run.steps = 3;
        const RankResult kept = run_ranks(run);
        run.recompute = true;
        expect_equal(run_ranks(run),
                     kept,
                     format("{}{} of {} tokens", name, is_adapted ? ", adapted," : "", length));
      }
    }
  }
}

TEST(TensorParallel, RecomputeAndOverlapChangeNothing) {
  RankRun run = tensor_run({.data = 2, .tensor = 2, .sequence_parallel = true});
  run.placement = {.param = 2, .secondary = 2, .grad = 2, .optimizer = 2};
  run.steps = 4;
  const RankResult kept = run_ranks(run);
  run.recompute = true;
  expect_equal(run_ranks(run), kept, "recompute");
  run.overlap = true;
  expect_equal(run_ranks(run), kept, "recompute and overlap");
}

struct Float8Case {
  TensorCase degrees;
  bool rowwise;
};

std::string float8_name(const testing::TestParamInfo<Float8Case>& info) {
  return format("Data{}Tensor{}{}{}",
                info.param.degrees.data,
                info.param.degrees.tensor,
                info.param.degrees.sequence_parallel ? "Sequence" : "",
                info.param.rowwise ? "Rowwise" : "Tensorwise");
}

class Float8LayoutTest : public testing::TestWithParam<Float8Case> {
 protected:
  static RankRun run() {
    RankRun run = tensor_run(GetParam().degrees);
    run.float8 = {.rowwise = GetParam().rowwise, .head = true};
    return run;
  }
};

INSTANTIATE_TEST_SUITE_P(Degrees,
                         Float8LayoutTest,
                         testing::Values(Float8Case{{2, 1, false}, false},
                                         Float8Case{{2, 1, false}, true},
                                         Float8Case{{1, 2, false}, false},
                                         Float8Case{{1, 2, false}, true},
                                         Float8Case{{1, 2, true}, false},
                                         Float8Case{{1, 2, true}, true},
                                         Float8Case{{2, 2, true}, false},
                                         Float8Case{{2, 2, true}, true}),
                         float8_name);

// Scales are those of whole tensors, so that layouts agree but for sums in another order; these may
// round a value to the next code, a part in 16 of it, and a later loss by more than D4 allows.
TEST_P(Float8LayoutTest, AgreesWithOneRank) {
  RankRun run = this->run();
  for (const std::int64_t microbatches : {1, 2}) {
    run.microbatches = microbatches;
    const RankResult single = run_ranks(alone(run));
    RankRun exact = alone(run);
    exact.float8.reset();
    EXPECT_NE(run_ranks(exact).losses, single.losses);
    for (const Placement& placement : some_placements(run.mesh)) {
      run.placement = placement;
      const RankResult result = run_ranks(run);
      for (std::size_t i = 0; i < result.losses.size(); ++i) {
        EXPECT_NEAR(result.losses[i], single.losses[i], (i == 0 ? 1e-5F : 1e-3F) * single.losses[i])
            << text(placement) << ": step " << i + 1;
      }
    }
  }
}

TEST_P(Float8LayoutTest, PlacementRecomputeAndOverlapChangeNothing) {
  RankRun run = this->run();
  run.steps = 4;
  const RankResult first = run_ranks(run);
  for (const Placement& placement : some_placements(run.mesh)) {
    run.placement = placement;
    for (const bool recompute : {false, true}) {
      run.recompute = recompute;
      run.overlap = recompute;
      expect_equal(run_ranks(run), first, format("{}, recompute {}", text(placement), recompute));
    }
  }
  if (!GetParam().rowwise) {
    run.float8->keep_weight_codes = true;
    expect_equal(run_ranks(run), first, "codes of weights kept, and recomputed");
    run.recompute = false;
    expect_equal(run_ranks(run), first, "codes of weights kept");
    run.placement = {};
    run.microbatches = 2;
    const RankResult once = run_ranks(run);
    run.float8->keep_weight_codes = false;
    expect_equal(run_ranks(run), once, "codes of weights made once a step");
  }
}

// Partial sums are rounded before they are folded: close, not to D4.
TEST(TensorParallel, Bf16StaysClose) {
  RankRun run = tensor_run({.data = 1, .tensor = 2, .sequence_parallel = true});
  run.dtype = DType::kBF16;
  const RankResult result = run_ranks(run);
  const RankResult single = run_ranks(alone(run));
  for (std::size_t i = 0; i < result.losses.size(); ++i) {
    EXPECT_NEAR(result.losses[i], single.losses[i], 1e-2F * single.losses[i]) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace tessera
