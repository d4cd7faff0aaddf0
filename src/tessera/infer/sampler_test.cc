#include "tessera/infer/sampler.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using testing::ElementsAre;

// Probabilities 1/8, 2/8, 5/8 at temperature 1: drawn in the order 2, 1, 0.
const std::vector<float> kLogits = {std::log(1.0F), std::log(2.0F), std::log(5.0F)};

const double kAlmostOne = std::nextafter(1.0, 0.0);

// How often each token comes among 7,000 evenly spread values of `uniform`.
std::vector<int> counts(const SamplingOptions& options) {
  std::vector<int> result(kLogits.size());
  for (int i = 0; i < 7000; ++i) {
    const std::int32_t token = sample_token(kLogits, options, (i + 0.5) / 7000.0);
    ++result.at(static_cast<std::size_t>(token));
  }
  return result;
}

TEST(Sampler, DrawsByProbability) {
  EXPECT_THAT(counts({}), ElementsAre(875, 1750, 4375));
}

TEST(Sampler, LikeliestTokenComesFirst) {
  EXPECT_EQ(sample_token(kLogits, {}, 0.0), 2);
  EXPECT_EQ(sample_token(kLogits, {}, 0.62), 2);
  EXPECT_EQ(sample_token(kLogits, {}, 0.63), 1);
  EXPECT_EQ(sample_token(kLogits, {}, 0.88), 0);
  EXPECT_EQ(sample_token(kLogits, {}, kAlmostOne), 0);
}

TEST(Sampler, TemperatureFlattensOrSharpens) {
  // Weights sqrt(1), sqrt(2), sqrt(5) of 4.650; and 1, 4, 25 of 30.
  EXPECT_THAT(counts({.temperature = 2.0}), ElementsAre(1505, 2129, 3366));
  EXPECT_THAT(counts({.temperature = 0.5}), ElementsAre(233, 934, 5833));
}

TEST(Sampler, TemperatureZeroTakesTheLikeliest) {
  for (const double uniform : {0.0, 0.5, kAlmostOne}) {
    EXPECT_EQ(sample_token(kLogits, {.temperature = 0.0}, uniform), 2);
    EXPECT_EQ(sample_token(std::vector<float>{0.0F, 1.0F, 1.0F}, {.temperature = 0.0}, uniform), 1)
        << "of equally likely ones the smaller id";
  }
}

TEST(Sampler, TopKKeepsTheLikeliest) {
  EXPECT_THAT(counts({.top_k = 2}), ElementsAre(0, 2000, 5000));
  EXPECT_THAT(counts({.top_k = 1}), ElementsAre(0, 0, 7000));
  EXPECT_THAT(counts({.top_k = 9}), ElementsAre(875, 1750, 4375));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  EXPECT_THAT(counts({.top_p = 0.0}), ElementsAre(0, 0, 7000));
  EXPECT_THAT(counts({.top_p = 0.62}), ElementsAre(0, 0, 7000));
  EXPECT_THAT(counts({.top_p = 0.63}), ElementsAre(0, 2000, 5000));
  EXPECT_THAT(counts({.top_p = 0.87}), ElementsAre(0, 2000, 5000));
  EXPECT_THAT(counts({.top_p = 0.88}), ElementsAre(875, 1750, 4375));
}

// Of the two that top_k keeps, the likeliest has 5/7 = 0.714.
TEST(Sampler, TopPIsOfWhatTopKKeeps) {
  EXPECT_THAT(counts({.top_k = 2, .top_p = 0.71}), ElementsAre(0, 0, 7000));
  EXPECT_THAT(counts({.top_k = 2, .top_p = 0.72}), ElementsAre(0, 2000, 5000));
}

TEST(Sampler, MinPKeepsWhatIsNearlyAsLikelyAsTheLikeliest) {
  EXPECT_THAT(counts({.min_p = 0.19}), ElementsAre(875, 1750, 4375));
  EXPECT_THAT(counts({.min_p = 0.21}), ElementsAre(0, 2000, 5000));
  EXPECT_THAT(counts({.min_p = 0.39}), ElementsAre(0, 2000, 5000));
  EXPECT_THAT(counts({.min_p = 0.41}), ElementsAre(0, 0, 7000));
  EXPECT_THAT(counts({.min_p = 1.0}), ElementsAre(0, 0, 7000));
}

// At temperature 2 the weights over the likeliest's are 0.447, 0.632, 1.
TEST(Sampler, MinPComesAfterTemperatureAndTopP) {
  EXPECT_THAT(counts({.temperature = 2.0, .min_p = 0.44}), ElementsAre(1505, 2129, 3366));
  EXPECT_THAT(counts({.temperature = 2.0, .top_p = 0.7, .min_p = 0.64}), ElementsAre(0, 0, 7000));
  // Top-p is of all tokens, though min-p leaves fewer.
  EXPECT_THAT(counts({.top_p = 0.63, .min_p = 0.21}), ElementsAre(0, 2000, 5000));
}

// More tokens than are put in order at first.
TEST(Sampler, ManyTokensOfEqualProbability) {
  const std::vector<float> logits(1000, 1.5F);
  for (const std::int32_t token : {0, 63, 64, 65, 500, 999}) {
    EXPECT_EQ(sample_token(logits, {}, (token + 0.5) / 1000.0), token);
    EXPECT_EQ(sample_token(logits, {.top_k = 1001}, (token + 0.5) / 1000.0), token);
  }
  EXPECT_EQ(sample_token(logits, {.top_k = 300}, kAlmostOne), 299);
  EXPECT_EQ(sample_token(logits, {.top_p = 0.3}, kAlmostOne), 299);
}

TEST(Sampler, RepetitionPenaltyOfEachTokenOnce) {
  std::vector<float> logits = {2.0F, -2.0F, 0.0F, 3.0F, -1.0F};
  penalize_repetition(logits, std::vector<std::int32_t>{1, 0, 2, 1, 0, 0}, 1.25);
  EXPECT_THAT(logits, ElementsAre(1.6F, -2.5F, 0.0F, 3.0F, -1.0F));
  penalize_repetition(logits, std::vector<std::int32_t>{3}, 0.5);
  EXPECT_THAT(logits, ElementsAre(1.6F, -2.5F, 0.0F, 6.0F, -1.0F));
}

TEST(Sampler, ExtremeLogits) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sample_token(std::vector<float>{-infinity, 0.0F, -infinity}, {}, kAlmostOne), 1);
  EXPECT_EQ(sample_token(std::vector<float>{-3e38F, 3e38F}, {.temperature = 0.01}, kAlmostOne), 1);
  EXPECT_EQ(sample_token(std::vector<float>{7.0F}, {}, kAlmostOne), 0);
}

ErrorCode error_of(std::span<const float> logits) {
  try {
    sample_token(logits, {}, 0.5);
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kInternal;
}

TEST(Sampler, Errors) {
  EXPECT_EQ(error_of({}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of(std::vector<float>{0.0F, std::nanf("")}), ErrorCode::kInvalidData);
}

}  // namespace
}  // namespace tessera
