#include "tessera/actions/split_tokens.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using Lengths = std::vector<std::int64_t>;
using testing::HasSubstr;

// What tokens [begin, end) cost, token by token.
double cost_of(std::int64_t begin, std::int64_t end, std::int64_t tokens, double growth) {
  double cost = 0.0;
  for (std::int64_t i = begin; i < end; ++i) {
    cost += 1.0 + growth * (static_cast<double>(i) + 0.5) / static_cast<double>(tokens);
  }
  return cost;
}

TEST(SplitTokens, CutsEvenlyWhatCostsTheSame) {
  EXPECT_EQ(split_tokens(12, 3, 0.0), (Lengths{4, 4, 4}));
  EXPECT_EQ(split_tokens(13, 4, 0.0), (Lengths{3, 4, 3, 3}));
  EXPECT_EQ(split_tokens(13, 13, 0.0), Lengths(13, 1));
  EXPECT_EQ(split_tokens(2048, 4, 0.0), (Lengths{512, 512, 512, 512}));
  EXPECT_EQ(split_tokens(7, 1, 3.0), Lengths{7});
}

// Where the whole cost is attention, a half of it is that of the last 1 - 1 / sqrt(2).
TEST(SplitTokens, GivesLaterSlicesLess) {
  EXPECT_EQ(split_tokens(1 << 20, 2, 1e12), (Lengths{741440, 307136}));
  EXPECT_EQ(split_tokens(1024, 2, 2.0), (Lengths{640, 384}));  // exact: 632.9
}

// A token more or less, in steps of the multiple, is all that costs differ by.
TEST(SplitTokens, LetsSlicesCostTheSame) {
  for (const std::int64_t tokens : {64, 1000, 8192, 131072}) {
    for (const std::int64_t slices : {2, 3, 8}) {
      for (const double growth : {0.0, 0.3, 4.0, 50.0}) {
        const Lengths lengths = split_tokens(tokens, slices, growth);
        ASSERT_EQ(std::ssize(lengths), slices);
        EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), tokens);
        const double mean = cost_of(0, tokens, tokens, growth) / static_cast<double>(slices);
        const double step =
            static_cast<double>(std::clamp<std::int64_t>(tokens / (16 * slices), 1, 64));
        std::int64_t begin = 0;
        for (const std::int64_t length : lengths) {
          EXPECT_NEAR(cost_of(begin, begin + length, tokens, growth), mean, step * (1.0 + growth))
              << format("{} tokens, {} slices, growth {}", tokens, slices, growth);
          begin += length;
        }
      }
    }
  }
}

// As without units of a part of the tokens.
TEST(SplitTokens, CutsBetweenUnits) {
  EXPECT_EQ(split_tokens(32, 3, 0.0, 2), (Lengths{10, 12, 10}));
  EXPECT_EQ(split_tokens(512, 16, 0.0, 8), Lengths(16, 32));
  for (const std::int64_t unit : {2, 3, 8}) {
    for (const std::int64_t slices : {2, 7, 40}) {
      Lengths expected = split_tokens(1000, slices, 0.4);
      for (std::int64_t& length : expected) {
        length *= unit;
      }
      EXPECT_EQ(split_tokens(1000 * unit, slices, 0.4, unit), expected);
    }
  }
}

TEST(SplitTokens, LeavesEachSliceATokenHoweverSteep) {
  for (const std::int64_t slices : {2, 5, 9}) {
    const Lengths lengths = split_tokens(9, slices, 1e6);
    EXPECT_GE(std::ranges::min(lengths), 1);
    EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), 9);
  }
}

TEST(SplitTokens, RefusesWhatCannotBeCut) {
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [] { split_tokens(12, 5, 0.0, 3); }),
              HasSubstr("5 slices of 12 tokens, expected 1 to 4"));
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [] { split_tokens(13, 4, 0.0, 3); }),
              HasSubstr("slices of 13 tokens in multiples of 3"));
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [] { split_tokens(3, 4, 0.0); }),
              HasSubstr("4 slices of 3 tokens, expected 1 to 3"));
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [] { split_tokens(3, 2, -1.0); }),
              HasSubstr("grow by -1, expected 0 or more"));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [] { split_tokens(3, 2, kInfinity); }),
              HasSubstr("grow by inf"));
}

}  // namespace
}  // namespace tessera
