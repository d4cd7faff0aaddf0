#include "tessera/train/predicted_pace.h"

#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The only word of a session with a slow first step, one odd one, and others that take so long;
// none may come before the 21st step or after it.
std::optional<PredictedPace::Word> word_of(std::optional<double> predicted, double seconds) {
  PredictedPace pace(predicted);
  EXPECT_FALSE(pace.add(100 * seconds));
  EXPECT_FALSE(pace.add(50 * seconds));
  for (int i = 0; i < 18; ++i) {
    EXPECT_FALSE(pace.add(seconds));
  }
  std::optional<PredictedPace::Word> word = pace.add(seconds);
  for (int i = 0; i < 50; ++i) {
    EXPECT_FALSE(pace.add(9 * seconds));
  }
  return word;
}

TEST(PredictedPace, SaysOnceHowLongStepsTake) {
  const auto word = word_of(1.187, 1.203);
  ASSERT_TRUE(word);
  EXPECT_FALSE(word->is_warning);
  EXPECT_EQ(word->text, "step 1.203 s (predicted 1.187 s)");
}

TEST(PredictedPace, WarnsBeyondAFifth) {
  for (const double seconds : {1.19, 0.81}) {
    EXPECT_FALSE(word_of(1.0, seconds)->is_warning) << seconds;
  }
  const auto longer = word_of(1.0, 1.3);
  EXPECT_TRUE(longer->is_warning);
  EXPECT_THAT(longer->text,
              AllOf(HasSubstr("step 1.3 s (predicted 1 s): 30 % longer, by the median of 20 steps"),
                    HasSubstr("throttled")));
  const auto shorter = word_of(1.0, 0.5);
  EXPECT_TRUE(shorter->is_warning);
  EXPECT_THAT(shorter->text, AllOf(HasSubstr("50 % shorter"), Not(HasSubstr("throttled"))));
}

TEST(PredictedPace, SaysNothingWhereNothingWasPredicted) {
  EXPECT_FALSE(word_of(std::nullopt, 1.0));
}

}  // namespace
}  // namespace tessera
