#include "tessera/simulate/cache_hits.h"

#include <gtest/gtest.h>

#include "tessera/ops/elementwise/elementwise.h"

namespace tessera {
namespace {

constexpr std::int64_t kSmall = 1 << 10;  // bytes
constexpr std::int64_t kLarge = 1 << 20;

// b = a + a, d = c + c, f = b + b, step after step; c and d have so many bytes each.
Program three_sums(std::int64_t bytes) {
  Program program;
  program.streams = {"compute"};
  program.segments = {{.name = "step", .instructions = {}}};
  program.calls = {{.segment = {0}}};
  const auto tensor = [](std::size_t buffer, std::int64_t size) -> TensorRef {
    return {.buffer = BufferId::of(buffer),
            .type = {.dtype = DType::kF32, .dims = {{.name = "i", .bound = size / 4}}},
            .strides = {1}};
  };
  const auto add = [&](const TensorRef& in, const TensorRef& out) {
    program.segments[0].instructions.push_back(
        {.op = make_op(AddAttrs{}), .operands = {in, in}, .results = {out}});
  };
  add(tensor(0, kSmall), tensor(1, kSmall));
  add(tensor(2, bytes), tensor(3, bytes));
  add(tensor(1, kSmall), tensor(4, kSmall));
  return program;
}

TEST(CachedShare, EndsWhereTheCacheDoes) {
  EXPECT_EQ(cached_share(100.0, 0.0), 0.0);
  EXPECT_EQ(cached_share(0.0, 100.0), 1.0);
  EXPECT_EQ(cached_share(50.0, 100.0), 1.0);
  EXPECT_EQ(cached_share(100.0, 100.0), 0.5);
  EXPECT_EQ(cached_share(150.0, 100.0), 0.0);
}

TEST(CachedShares, OfWhatFitsAreAll) {
  const Program program = three_sums(kSmall);
  EXPECT_EQ(cached_shares(program, issue_order(program), 100.0 * kSmall),
            (std::vector<double>{1.0, 1.0, 1.0}));
}

// The large sum sweeps everything out, itself too; b alone is there when the next step begins.
TEST(CachedShares, OfWhatWasSweptOutAreNone) {
  const Program program = three_sums(kLarge);
  EXPECT_EQ(cached_shares(program, issue_order(program), 100.0 * kSmall),
            (std::vector<double>{1.0 / 3.0, 0.0, 0.0}));
}

TEST(CachedShares, WithoutACacheAreNone) {
  const Program program = three_sums(kSmall);
  EXPECT_EQ(cached_shares(program, issue_order(program), 0.0),
            (std::vector<double>{0.0, 0.0, 0.0}));
}

}  // namespace
}  // namespace tessera
