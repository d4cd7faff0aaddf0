#include "tessera/launch/stop_signal.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera {
namespace {

using testing::HasSubstr;
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
    EXPECT_EQ(stop.how_to_stop(),
              GetParam() == SIGINT
                  ? "SIGINT is ignored, as it was when the run started: stop it by SIGTERM"
                  : "");
  }
  EXPECT_EQ(std::signal(GetParam(), before), SIG_IGN);
  EXPECT_EQ(StopSignal().how_to_stop(), "");
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

// mpirun of Open MPI is the parent of its ranks, and kills them a second later.
TEST(LauncherSignalDeathTest, OfTheParentLeavesLittleTime) {
  const StopSignal here(kHour, 2.0);
  EXPECT_THAT(here.how_to_stop(), HasSubstr("Ctrl-C leaves the ranks 2 s"));
  stderr_of(SIGTERM);
  EXPECT_TRUE(here.requested());
  EXPECT_FALSE(seconds_from_launcher()) << "this process is not its own parent";
  EXPECT_EQ(stop_patience_seconds(), 5.0);
}

TEST(LauncherSignalDeathTest, IsTakenForTheEndOfTheLaunch) {
  const auto wait_for_parent = [] {
    const pid_t child = ::fork();
    if (child == 0) {
      const StopSignal stop(kHour, 2.0);
      ::kill(::getppid(), SIGCONT);
      while (!stop.requested()) {
        ::usleep(1000);
      }
      ::_exit(seconds_from_launcher() == 2.0 && stop_patience_seconds() < 1.0 ? 0 : 1);
    }
    // Until the child has its handler SIGTERM ends it: it says when, by a signal that waits.
    sigset_t ready;
    sigemptyset(&ready);
    sigaddset(&ready, SIGCONT);
    int signal = 0;
    ::sigwait(&ready, &signal);
    ::kill(child, SIGTERM);
    int status = 0;
    ::waitpid(child, &status, 0);
    std::exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  };
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCONT);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  EXPECT_EXIT(wait_for_parent(), testing::ExitedWithCode(0), "");
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace tessera
