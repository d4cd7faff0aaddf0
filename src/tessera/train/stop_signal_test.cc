#include "tessera/train/stop_signal.h"

#include <csignal>

#include <gtest/gtest.h>

namespace tessera {
namespace {

class StopSignalDeathTest : public testing::TestWithParam<int> {};

TEST_P(StopSignalDeathTest, TheFirstIsNoted) {
  const StopSignal stop;
  EXPECT_FALSE(stop.requested());
  std::raise(GetParam());
  EXPECT_TRUE(stop.requested());
}

TEST_P(StopSignalDeathTest, TheNextWaiterStartsAfresh) {
  {
    const StopSignal stop;
    std::raise(GetParam());
  }
  EXPECT_FALSE(StopSignal().requested());
}

TEST_P(StopSignalDeathTest, TheSecondEndsTheProcess) {
  const auto raise_twice = [] {
    const StopSignal stop;
    std::raise(GetParam());
    std::raise(GetParam());
  };
  EXPECT_EXIT(raise_twice(), testing::KilledBySignal(GetParam()), "");
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

INSTANTIATE_TEST_SUITE_P(Signals, StopSignalDeathTest, testing::Values(SIGINT, SIGTERM));

}  // namespace
}  // namespace tessera
