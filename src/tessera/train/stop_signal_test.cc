#include "tessera/train/stop_signal.h"

#include <csignal>
#include <tuple>

#include <gtest/gtest.h>

namespace tessera {
namespace {

class StopSignalDeathTest : public testing::TestWithParam<int> {};

TEST_P(StopSignalDeathTest, TheFirstIsNotedAndAnnounced) {
  const StopSignal stop;
  EXPECT_FALSE(stop.requested());
  testing::internal::CaptureStderr();
  std::raise(GetParam());
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "stopping: this step is finished and saved; a second signal quits at once\n");
  EXPECT_TRUE(stop.requested());
}

TEST_P(StopSignalDeathTest, TheNextWaiterStartsAfresh) {
  {
    const StopSignal stop;
    std::raise(GetParam());
  }
  EXPECT_FALSE(stop_requested());
}

TEST_P(StopSignalDeathTest, IsUrgentUnlessSomethingMayTakeLong) {
  const StopSignal stop;
  EXPECT_FALSE(stop_is_urgent());
  testing::internal::CaptureStderr();
  std::raise(GetParam());
  testing::internal::GetCapturedStderr();
  EXPECT_TRUE(stop_is_urgent());
  {
    const Unhurried patience;
    EXPECT_FALSE(stop_is_urgent());
    EXPECT_TRUE(stop.requested());
  }
  EXPECT_TRUE(stop_is_urgent());
}

TEST_P(StopSignalDeathTest, WithoutAWaiterTheProcessEnds) {
  const auto raise_after = [] {
    {
      const StopSignal stop;
    }
    std::raise(GetParam());
  };
  EXPECT_EXIT(raise_after(), testing::KilledBySignal(GetParam()), "");
}

// As nohup and a shell's background jobs start a program.
TEST_P(StopSignalDeathTest, WhatWasIgnoredStaysIgnored) {
  const auto before = std::signal(GetParam(), SIG_IGN);
  {
    const StopSignal stop;
    std::raise(GetParam());
    std::raise(GetParam());
    EXPECT_FALSE(stop.requested());
  }
  EXPECT_EQ(std::signal(GetParam(), before), SIG_IGN);
}

INSTANTIATE_TEST_SUITE_P(Signals, StopSignalDeathTest, testing::Values(SIGINT, SIGTERM, SIGHUP));

class TwoSignalsDeathTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(TwoSignalsDeathTest, TheSecondOfAnyKindEndsTheProcess) {
  const int second = std::get<1>(GetParam());
  const auto raise_both = [] {
    const StopSignal stop;
    std::raise(std::get<0>(GetParam()));
    std::raise(std::get<1>(GetParam()));
  };
  EXPECT_EXIT(raise_both(), testing::KilledBySignal(second), "stopping");
}

INSTANTIATE_TEST_SUITE_P(Signals,
                         TwoSignalsDeathTest,
                         testing::Combine(testing::Values(SIGINT, SIGTERM, SIGHUP),
                                          testing::Values(SIGINT, SIGTERM, SIGHUP)));

}  // namespace
}  // namespace tessera
