#include "tessera/runtime/launcher.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/testing/faults.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Meets all other ranks.
void meet(World& world) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  world.group(ranks)->barrier();
}

Error error_of_launch(std::int64_t ranks, const std::function<void(World&)>& body) {
  try {
    launch_ranks(ranks, {.world = {.deadline_seconds = 2}}, body);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ErrorCode::kInternal, ""};
}

TEST(Launcher, RunsEveryRankOnce) {
  std::vector<std::atomic<int>> runs(5);
  launch_ranks(5, {}, [&](World& world) {
    ++runs[static_cast<std::size_t>(world.rank())];
    meet(world);
  });
  for (const std::atomic<int>& count : runs) {
    EXPECT_EQ(count, 1);
  }
}

TEST(Launcher, OneRankRunsOnTheCallersThread) {
  const auto caller = std::this_thread::get_id();
  launch_ranks(1, {}, [&](World& world) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    meet(world);
  });
}

// The ranks that have a thread wait for those that have none.
TEST(Launcher, WithoutThreadsForAllNobodyWaits) {
  const Faults faults({{.call = FaultCall::kThread, .after = 2, .error = EAGAIN}});
  const Error error = error_of_launch(4, meet);
  EXPECT_EQ(faults.hits(), 1);
  EXPECT_EQ(error.code(), ErrorCode::kDeviceError);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("the system gives no thread"), HasSubstr("rank 2")));
}

// What a failed rank leaves is worth more than the time that others wait for it.
TEST(Launcher, WhoSavesIsNotGivenUp) {
  static std::atomic<bool> saving = false;
  std::atomic<bool> saved = false;
  saving = true;
  try {
    launch_ranks(2,
                 {.world = {.deadline_seconds = 3.5}, .saving = [] { return saving.load(); }},
                 [&](World& world) {
                   if (world.rank() == 0) {
                     fail(ErrorCode::kInvalidData, "bad");
                   }
                   // Longer than those who save nothing get.
                   std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                   saved = true;
                   saving = false;
                 });
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
  }
  EXPECT_TRUE(saved);
}

TEST(Launcher, TheErrorOfARankEndsTheOthers) {
  const Error error = error_of_launch(4, [](World& world) {
    if (world.rank() == 2) {
      fail(ErrorCode::kInvalidData, "a bad line");
    }
    meet(world);
  });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
  EXPECT_THAT(error.what(),
              AllOf(StartsWith("a bad line (rank 2) (meanwhile rank "), HasSubstr("; missing: ")));
}

TEST(Launcher, WhatNobodyExpectedIsAFailureOfAPeer) {
  const Error error = error_of_launch(2, [](World& world) {
    if (world.rank() == 1) {
      throw std::runtime_error("odd");
    }
    meet(world);
  });
  EXPECT_EQ(error.code(), ErrorCode::kPeerFailure);
  EXPECT_EQ(exit_code(error.code()), 5);
  EXPECT_STREQ(error.what(),
               "unexpected: odd (rank 1) (meanwhile rank 0, barrier of 0 bytes; arrived: rank 0; "
               "missing: rank 1)");
}

TEST(Launcher, ALateRankIsNamed) {
  const Error error = error_of_launch(3, [](World& world) {
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2300));
    }
    meet(world);
  });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_EQ(exit_code(error.code()), 5);
  EXPECT_THAT(error.what(), HasSubstr("arrived: rank 0, 2; missing: rank 1"));
}

TEST(LauncherDeathTest, ARankThatNeverEndsTakesTheProcessWithIt) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto hang = [] {
    launch_ranks(2,
                 {.world = {.deadline_seconds = 0.5},
                  .on_stuck = [](const Error& error) { std::fputs(error.what(), stderr); }},
                 [](World& world) {
                   while (world.rank() == 1) {
                     std::this_thread::sleep_for(std::chrono::seconds(1));
                   }
                   meet(world);
                 });
  };
  EXPECT_EXIT(hang(), testing::ExitedWithCode(5), "arrived: rank 0; missing: rank 1");
}

// Without the wish the run would wait for the deadline, longer than any test may take.
TEST(LauncherDeathTest, WhoWantsToStopDoesNotWaitForAStuckCollective) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto hang = [] {
    launch_ranks(2,
                 {.world = {.deadline_seconds = 1e5, .stopping = [] { return true; }},
                  .on_stuck = [](const Error& error) { std::fputs(error.what(), stderr); }},
                 [](World& world) {
                   while (world.rank() == 1) {
                     std::this_thread::sleep_for(std::chrono::seconds(1));
                   }
                   meet(world);
                 });
  };
  EXPECT_EXIT(hang(),
              testing::ExitedWithCode(5),
              "no answer within 5 s, the limit in a run that was asked to stop; arrived: rank 0; "
              "missing: rank 1");
}

}  // namespace
}  // namespace tessera
