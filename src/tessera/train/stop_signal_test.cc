#include "tessera/train/stop_signal.h"

#include <chrono>
#include <csignal>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using testing::StartsWith;

std::string stderr_of(int signal) {
  testing::internal::CaptureStderr();
  std::raise(signal);
  return testing::internal::GetCapturedStderr();
}

class StopSignalDeathTest : public testing::TestWithParam<int> {};

TEST_P(StopSignalDeathTest, TheFirstIsNotedAndAnnounced) {
  const StopSignal stop;
  EXPECT_FALSE(stop.requested());
  EXPECT_THAT(stderr_of(GetParam()), StartsWith("stopping: "));
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
  stderr_of(GetParam());
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
    EXPECT_TRUE(stop.ignores(GetParam()));
  }
  EXPECT_EQ(std::signal(GetParam(), before), SIG_IGN);
  const StopSignal stop;
  EXPECT_FALSE(stop.ignores(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Signals,
                         StopSignalDeathTest,
                         testing::Values(SIGINT, SIGTERM, SIGHUP, SIGUSR2, SIGXCPU));

// A repeat that no clock can tell from a second signal.
constexpr auto kAtOnce = std::chrono::milliseconds(0);
// One that no test outlasts.
constexpr auto kHour = std::chrono::hours(1);

class TwoSignalsDeathTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(TwoSignalsDeathTest, ASecondOneEndsTheProcess) {
  const int second = std::get<1>(GetParam());
  const auto raise_both = [] {
    const StopSignal stop(kAtOnce);
    std::raise(std::get<0>(GetParam()));
    std::raise(std::get<1>(GetParam()));
  };
  EXPECT_EXIT(raise_both(), testing::KilledBySignal(second), "stopping");
}

// Slurm ends a job by SIGTERM, SIGCONT and SIGTERM within milliseconds.
TEST_P(TwoSignalsDeathTest, ARepeatIsTheSameOne) {
  const StopSignal stop(kHour);
  EXPECT_THAT(stderr_of(std::get<0>(GetParam())), StartsWith("stopping: "));
  std::raise(SIGCONT);
  EXPECT_EQ(stderr_of(std::get<1>(GetParam())), "");
  EXPECT_TRUE(stop.requested());
}

INSTANTIATE_TEST_SUITE_P(Signals,
                         TwoSignalsDeathTest,
                         testing::Combine(testing::Values(SIGINT, SIGTERM, SIGHUP),
                                          testing::Values(SIGINT, SIGTERM, SIGHUP)));

class WarningSignalTest : public testing::TestWithParam<int> {};

// Where CPU time is limited the system repeats SIGXCPU every second.
TEST_P(WarningSignalTest, StopsHoweverOftenItComes) {
  const StopSignal stop(kAtOnce);
  EXPECT_THAT(stderr_of(GetParam()), StartsWith("stopping: "));
  EXPECT_EQ(stderr_of(GetParam()), "");
  EXPECT_TRUE(stop.requested());
}

// Schedulers send SIGTERM at the limit that they have warned of: the save may still be under way.
TEST_P(WarningSignalTest, SigtermAfterItIsTheFirst) {
  const StopSignal stop(kAtOnce);
  stderr_of(GetParam());
  EXPECT_EQ(stderr_of(SIGTERM), "");
  EXPECT_TRUE(stop.requested());
}

INSTANTIATE_TEST_SUITE_P(Signals, WarningSignalTest, testing::Values(SIGUSR2, SIGXCPU));

TEST(SaveSignalTest, IsTakenOnce) {
  StopSignal stop(kAtOnce);
  EXPECT_FALSE(stop.take_save_request());
  EXPECT_THAT(stderr_of(SIGUSR1), StartsWith("saving after this step"));
  EXPECT_EQ(stderr_of(SIGUSR1), "");
  EXPECT_TRUE(stop.take_save_request());
  EXPECT_FALSE(stop.take_save_request());
  EXPECT_FALSE(stop.requested());
  EXPECT_THAT(stderr_of(SIGUSR1), StartsWith("saving after this step"));
  EXPECT_TRUE(stop.take_save_request());
}

TEST(SaveSignalTest, BeforeTheStepsNothingIsSaved) {
  const NothingToSave start;
  EXPECT_THAT(stderr_of(SIGUSR1), StartsWith("nothing is saved: "));
  {
    StopSignal stop;
    stderr_of(SIGUSR1);
    EXPECT_TRUE(stop.take_save_request());
  }
  EXPECT_THAT(stderr_of(SIGUSR1), StartsWith("nothing is saved: "));
}

}  // namespace
}  // namespace tessera
