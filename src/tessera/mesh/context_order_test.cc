#include "tessera/mesh/context_order.h"

#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(ContextOrder, ZigzagPairsEarlyPiecesWithLateOnes) {
  EXPECT_EQ(context_order(8, 2, ContextBalance::kZigzag), (Tokens{0, 1, 6, 7, 2, 3, 4, 5}));
  EXPECT_EQ(context_order(6, 3, ContextBalance::kZigzag), (Tokens{0, 5, 1, 4, 2, 3}));
}

TEST(ContextOrder, ElseRunsFollowEachOther) {
  EXPECT_EQ(context_order(6, 3, ContextBalance::kNone), (Tokens{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(context_order(5, 1, ContextBalance::kZigzag), (Tokens{0, 1, 2, 3, 4}));
}

// A query at position p sees p + 1 keys.
std::vector<std::int64_t> pairs_of_ranks(std::int64_t ranks, ContextBalance balance) {
  constexpr std::int64_t kPiece = 5;
  const std::int64_t length = 2 * ranks * kPiece;
  const Tokens order = context_order(length, ranks, balance);
  std::vector<std::int64_t> pairs(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < order.size(); ++i) {
    pairs[i / static_cast<std::size_t>(length / ranks)] += order[i] + 1;
  }
  return pairs;
}

TEST(ContextOrder, ZigzagGivesAllRanksEquallyManyPairs) {
  for (const std::int64_t ranks : {2, 3, 4, 8}) {
    const std::int64_t tokens = 10 * ranks;
    const std::vector<std::int64_t> pairs = pairs_of_ranks(ranks, ContextBalance::kZigzag);
    EXPECT_EQ(pairs, std::vector<std::int64_t>(pairs.size(), tokens * (tokens + 1) / 2 / ranks));
  }
  // Runs in order: the last rank sees (2 C - 1) / C of the mean.
  const std::vector<std::int64_t> runs = pairs_of_ranks(4, ContextBalance::kNone);
  EXPECT_EQ(runs, (std::vector<std::int64_t>{55, 155, 255, 355}));
}

TEST(ContextOrder, RefusesLengthsThatDoNotDivide) {
  EXPECT_EQ(
      error_of(ErrorCode::kInvalidArgument, [] { context_order(10, 4, ContextBalance::kZigzag); }),
      "a sequence of 10 tokens over 4 context ranks, expected a multiple of 8");
  EXPECT_EQ(
      error_of(ErrorCode::kInvalidArgument, [] { context_order(10, 4, ContextBalance::kNone); }),
      "a sequence of 10 tokens over 4 context ranks, expected a multiple of 4");
}

}  // namespace
}  // namespace tessera
