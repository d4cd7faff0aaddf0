#include "tessera/optim/schedule.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// 20 steps: warmup 1..4, stable 5..12, decay 13..20 with x = (n - 13) / 8.
Schedule twenty_steps(Decay decay, double floor) {
  return {.warmup = 4, .decay_ratio = 0.4, .decay = decay, .floor = floor};
}

double rate(const Schedule& schedule, std::int64_t step) {
  return learning_rate(schedule, 2.0, 20, step);
}

TEST(LearningRate, WarmupAndStablePart) {
  for (const Decay decay : {Decay::kLinear, Decay::kCosine, Decay::kSqrt}) {
    const Schedule schedule = twenty_steps(decay, 0.1);
    EXPECT_DOUBLE_EQ(rate(schedule, 1), 0.5);
    EXPECT_DOUBLE_EQ(rate(schedule, 3), 1.5);
    EXPECT_DOUBLE_EQ(rate(schedule, 4), 2.0);
    EXPECT_DOUBLE_EQ(rate(schedule, 5), 2.0);
    EXPECT_DOUBLE_EQ(rate(schedule, 12), 2.0);
    EXPECT_DOUBLE_EQ(rate(schedule, 13), 2.0);
  }
}

TEST(LearningRate, LinearDecay) {
  const Schedule schedule = twenty_steps(Decay::kLinear, 0.0);
  EXPECT_DOUBLE_EQ(rate(schedule, 14), 1.75);
  EXPECT_DOUBLE_EQ(rate(schedule, 17), 1.0);
  EXPECT_DOUBLE_EQ(rate(schedule, 20), 0.25);
  EXPECT_DOUBLE_EQ(rate(schedule, 21), 0.0);
}

TEST(LearningRate, CosineDecay) {
  const Schedule schedule = twenty_steps(Decay::kCosine, 0.0);
  EXPECT_DOUBLE_EQ(rate(schedule, 15), 1.0 + std::sqrt(0.5));  // cos(pi / 4)
  EXPECT_DOUBLE_EQ(rate(schedule, 17), 1.0);
  EXPECT_DOUBLE_EQ(rate(schedule, 19), 1.0 - std::sqrt(0.5));
  EXPECT_NEAR(rate(schedule, 21), 0.0, 1e-15);
}

TEST(LearningRate, SqrtDecay) {
  const Schedule schedule = twenty_steps(Decay::kSqrt, 0.0);
  EXPECT_DOUBLE_EQ(rate(schedule, 15), 1.0);  // x = 1/4
  EXPECT_DOUBLE_EQ(rate(schedule, 17), 2.0 - std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(rate(schedule, 21), 0.0);
}

TEST(LearningRate, EndsAtTheFloorAndStaysThere) {
  for (const Decay decay : {Decay::kLinear, Decay::kCosine, Decay::kSqrt}) {
    const Schedule schedule = twenty_steps(decay, 0.25);
    EXPECT_GT(rate(schedule, 20), 0.5);
    EXPECT_DOUBLE_EQ(rate(schedule, 21), 0.5);
    EXPECT_DOUBLE_EQ(rate(schedule, 1000), 0.5);
  }
  EXPECT_DOUBLE_EQ(rate(twenty_steps(Decay::kLinear, 0.25), 17), 1.25);
}

TEST(LearningRate, NoWarmupAndNoDecay) {
  const Schedule constant = {.warmup = 0, .decay_ratio = 0.0};
  for (const std::int64_t step : {1, 10, 20, 21}) {
    EXPECT_DOUBLE_EQ(rate(constant, step), 2.0);
  }
}

TEST(LearningRate, DecayOverEveryStep) {
  const Schedule schedule = {.warmup = 0, .decay_ratio = 1.0, .decay = Decay::kLinear};
  EXPECT_DOUBLE_EQ(rate(schedule, 1), 2.0);
  EXPECT_DOUBLE_EQ(rate(schedule, 11), 1.0);
  EXPECT_DOUBLE_EQ(rate(schedule, 16), 0.5);
}

TEST(LearningRate, DecayStepsAreRounded) {
  EXPECT_EQ(num_decay_steps({.decay_ratio = 0.8}, 400), 320);
  EXPECT_EQ(num_decay_steps({.decay_ratio = 0.24}, 10), 2);
  EXPECT_EQ(num_decay_steps({.decay_ratio = 0.25}, 10), 3);
  EXPECT_EQ(num_decay_steps({.decay_ratio = 0.04}, 10), 0);
}

TEST(LearningRate, RefusesStepZero) {
  try {
    rate({}, 0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("step 0: steps count from 1"));
  }
}

}  // namespace
}  // namespace tessera
