// Layouts change nothing (DESIGN D3, D4), for models and layouts that nobody chose: sizes,
// families, dtypes and degrees are drawn from a seed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/mesh/placement.h"
#include "tessera/models/family.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}

  // In [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high) {
    const std::uint64_t word = mix(seed_ * 1'000'003 + ++count_);
    return low + static_cast<std::int64_t>(word % static_cast<std::uint64_t>(high - low + 1));
  }

  bool one_in(std::int64_t n) { return between(1, n) == 1; }

  template <class T>
  T one_of(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(
        between(0, static_cast<std::int64_t>(choices.size()) - 1))];
  }

 private:
  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31U);
  }

  std::uint64_t seed_;
  std::uint64_t count_ = 0;
};

ModelDescription draw_model(Draw& draw, std::int64_t tensor) {
  const std::string name = draw.one_of<std::string>({"llama3", "gpt2", "neox"});
  const bool is_llama = name == "llama3";
  const std::int64_t kv_heads = tensor * draw.between(1, 2);
  const std::int64_t heads = is_llama ? kv_heads * draw.between(1, 3) : kv_heads;
  const std::int64_t half_width = draw.between(1, 9);  // of a head
  const ModelFamily& family = model_family(name);
  ModelDescription model = family.describe(family.resolve(
      {.name = name,
       .dim = heads * 2 * half_width,
       .layers = draw.between(1, 3),
       .heads = heads,
       .kv_heads = is_llama ? std::optional(kv_heads) : std::nullopt,
       .ffn = draw.between(tensor, 70),
       .vocab = draw.between(tensor, 90),
       .rotary_fraction =
           name == "neox" ? std::optional(half_width % 2 == 0 ? 0.5 : 1.0) : std::nullopt}));
  if (draw.one_in(4)) {
    model.adapters = {
        .rank = draw.between(1, 4), .alpha = 4.0, .targets = {"wq", "wk", "w1", "w2"}};
  }
  return model;
}

Placement draw_placement(Draw& draw, const Mesh& mesh, std::optional<std::int64_t> grad = {}) {
  const std::vector<std::int64_t> degrees = data_degrees(mesh);
  Placement placement;
  placement.grad = grad ? *grad : draw.one_of(degrees);
  const auto up_to = [&](std::int64_t most) {
    std::vector<std::int64_t> some = degrees;
    std::erase_if(some, [&](std::int64_t degree) { return most % degree != 0; });
    return draw.one_of(some);
  };
  placement.param = up_to(placement.grad);
  placement.secondary = up_to(placement.param);
  std::vector<std::int64_t> wider = degrees;
  std::erase_if(wider, [&](std::int64_t degree) { return degree % placement.grad != 0; });
  placement.optimizer = draw.one_of(wider);
  return placement;
}

RankRun draw_run(Draw& draw) {
  const std::int64_t ranks = draw.one_of<std::int64_t>({1, 2, 2, 4, 4, 6});
  std::vector<std::int64_t> tensors = {1};
  for (const std::int64_t degree : {2, 4}) {
    if (ranks % degree == 0) {
      tensors.push_back(degree);
    }
  }
  const std::int64_t tensor = draw.one_of(tensors);
  RankRun run;
  run.mesh = ranks == 1 ? Mesh{} : virtual_mesh(ranks, tensor);
  run.other = draw_model(draw, tensor);
  run.microbatches = draw.between(1, 3);
  run.global_batch = run.microbatches * (ranks / tensor) * draw.between(1, 3);
  run.sequence_length = draw.between(1, 40);
  run.steps = 3;
  run.dtype = draw.one_in(3) ? DType::kBF16 : DType::kF32;
  run.moments = draw.one_in(5) ? DType::kBF16 : DType::kF32;
  run.sequence_parallel = tensor > 1 && draw.one_in(2);
  if (draw.one_in(6)) {
    run.float8 = {.rowwise = draw.one_in(2), .head = draw.one_in(2)};
  }
  run.placement = draw_placement(draw, run.mesh);
  return run;
}

std::string text(const RankRun& run) {
  return format(
      "{} on {} ranks, microbatches {}, batch {}, length {}, {}, placement {} {} {} {}{}{}",
      run.other.json,
      run.mesh.num_ranks(),
      run.microbatches,
      run.global_batch,
      run.sequence_length,
      name(run.dtype),
      run.placement.param,
      run.placement.secondary,
      run.placement.grad,
      run.placement.optimizer,
      run.sequence_parallel ? ", sequence parallel" : "",
      run.float8 ? ", float8" : "");
}

void expect_equal(const RankResult& found, const RankResult& expected, const std::string& what) {
  EXPECT_EQ(found.losses, expected.losses) << what;
  EXPECT_EQ(found.grad_norms, expected.grad_norms) << what;
  for (const auto& [name, weights] : expected.weights) {
    EXPECT_TRUE(weights == found.weights.at(name)) << what << ": " << name;
  }
}

// D4, where nothing is rounded on its way.
void expect_close(const RankResult& found, const RankResult& expected) {
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], expected.losses[i], (i == 0 ? 1e-6F : 1e-4F) * expected.losses[i])
        << "one rank: step " << i + 1;
  }
}

class RandomLayouts : public testing::TestWithParam<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLayouts, testing::Range<std::uint64_t>(0, 24));

TEST_P(RandomLayouts, ChangeNothing) {
  Draw draw(GetParam());
  RankRun run = draw_run(draw);
  SCOPED_TRACE(text(run));
  const RankResult expected = run_ranks(run);
  for (const char* const what : {"recompute", "no fusion", "overlap", "placement"}) {
    RankRun other = run;
    other.recompute = draw.one_in(2);
    other.fuse = !draw.one_in(2);
    other.overlap = draw.one_in(2);
    if (what == std::string("recompute")) {
      other.recompute = true;
    } else if (what == std::string("no fusion")) {
      other.fuse = false;
    } else if (what == std::string("overlap")) {
      other.overlap = true;
      other.overlap_layers = draw.between(1, 3);
    } else {
      other.placement = draw_placement(
          draw, run.mesh, run.microbatches == 1 ? std::nullopt : std::optional(run.placement.grad));
    }
    expect_equal(run_ranks(other),
                 expected,
                 format("{}: recompute {}, fuse {}, overlap {}, placement {} {} {} {}",
                        what,
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
