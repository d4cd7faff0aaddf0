// Layouts change nothing (docs/design/determinism.md, D3 and D4), for models and layouts that
// nobody chose: sizes, families, dtypes and degrees are drawn from a seed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tests/distributed/draw_run.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

// D4, where nothing is rounded on its way.
void expect_close(const RankResult& found, const RankResult& expected) {
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], expected.losses[i], (i == 0 ? 1e-6F : 1e-4F) * expected.losses[i])
        << "one rank: step " << i + 1;
  }
}

// To the host's memory, in pieces of any size, whatever the size of a tensor.
OffloadOptions draw_offload(Draw& draw) {
  const auto space = [&] { return draw.one_in(2) ? Space::kHost : Space::kDevice; };
  return {.optimizer = space(),
          .parameters = space(),
          .activations = space(),
          .piece_bytes = draw.between(1, 40'000),
          .least_bytes = draw.between(1, 500)};
}

std::string offload_text(const OffloadOptions& offload) {
  return format("{} {} {}, pieces of {}",
                name(offload.optimizer),
                name(offload.parameters),
                name(offload.activations),
                offload.piece_bytes);
}

constexpr std::uint64_t kSeeds = 24;

class RandomLayouts : public testing::TestWithParam<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLayouts, testing::Range<std::uint64_t>(0, kSeeds));

// Gradients that add up by use are among what is drawn, whole and as slices.
TEST(RandomRuns, SomeHaveWeightsOfSeveralUses) {
  std::map<bool, int> found;  // by whether slices add up
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Draw draw(seed);
    const RankRun run = draw_run(draw);
    const Program program = rank_program(run, nullptr);
    if (run.mesh.num_ranks() > 1 && std::ranges::any_of(program.states, [](const auto& state) {
          return state.state.use > 0;
        })) {
      ++found[run.placement.grad > 1];
    }
  }
  EXPECT_GE(found[false], 2);
  EXPECT_GE(found[true], 2);
}

TEST_P(RandomLayouts, ChangeNothing) {
  Draw draw(GetParam());
  RankRun run = draw_run(draw);
  SCOPED_TRACE(text(run));
  const RankResult expected = run_ranks(run);
  Draw spaces(GetParam() + 1000);
  for (const char* const what : {"recompute", "no fusion", "overlap", "placement"}) {
    RankRun other = run;
    other.recompute = draw.one_in(2);
    other.fuse = !draw.one_in(2);
    other.overlap = draw.one_in(2);
    if (what == std::string("recompute")) {
      other.recompute = draw.one_in(3);
      other.rules = draw_rules(draw, run);
    } else if (what == std::string("no fusion")) {
      other.fuse = false;
    } else if (what == std::string("overlap")) {
      other.overlap = true;
      other.overlap_layers = draw.between(1, 3);
    } else {
      other.placement = draw_placement(
          draw, run.mesh, run.microbatches == 1 ? std::nullopt : std::optional(run.placement.grad));
    }
    other.offload = draw_offload(spaces);
    expect_equal(run_ranks(other),
                 expected,
                 format("{}: offload {}, recompute {}, fuse {}, overlap {}, placement {} {} {} {}",
                        what,
                        offload_text(other.offload),
                        other.recompute,
                        other.fuse,
                        other.overlap,
                        other.placement.param,
                        other.placement.secondary,
                        other.placement.grad,
                        other.placement.optimizer));
  }
  if (run.dtype == DType::kF32 && !run.float8 && run.mesh.num_ranks() > 1) {
    RankRun alone = run;
    alone.mesh = {};
    alone.placement = {};
    alone.sequence_parallel = false;
    expect_close(expected, run_ranks(alone));
  }
}

}  // namespace
}  // namespace tessera
