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
  for (const std::int64_t each : {kSmall, kSmall, bytes, bytes, kSmall}) {
    program.buffers.push_back({.name = "buffer", .bytes = each});
  }
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

// f lies where a lay: what reads a then writes where it is.
TEST(CachedShares, GoByWhereTheArenaHasThem) {
  Program program = three_sums(kLarge);
  for (Buffer& buffer : program.buffers) {
    buffer.offsets = {static_cast<std::int64_t>(&buffer - program.buffers.data()) * kLarge};
  }
  const std::vector<double> apart = cached_shares(program, issue_order(program), 100.0 * kSmall);
  EXPECT_EQ(apart, (std::vector<double>{1.0 / 3.0, 0.0, 0.0}));
  program.buffers[4].offsets = program.buffers[0].offsets;
  EXPECT_EQ(cached_shares(program, issue_order(program), 100.0 * kSmall),
            (std::vector<double>{1.0, 0.0, 0.0}));
}

// Each call has a slot of its own of all buffers: the other's are elsewhere.
TEST(CachedShares, OfAPoolGoBySlots) {
  Program program = three_sums(kSmall);
  program.pools.push_back({.name = "pool", .slots = 2});
  for (Buffer& buffer : program.buffers) {
    buffer.pool = PoolId{0};
  }
  program.calls = {{.segment = {0}, .slots = {0}}, {.segment = {0}, .slots = {1}}};
  // A call touches 9 small tensors, and what the same slot's touched lies 18 back; but b, which the
  // last sum reads, as many back as the cache holds, and so is half there.
  EXPECT_EQ(cached_shares(program, issue_order(program), 6.0 * kSmall),
            (std::vector<double>{0.0, 0.0, 1.0 / 3.0}));
}

TEST(CachedShares, WithoutACacheAreNone) {
  const Program program = three_sums(kSmall);
  EXPECT_EQ(cached_shares(program, issue_order(program), 0.0),
            (std::vector<double>{0.0, 0.0, 0.0}));
}

}  // namespace
}  // namespace tessera
