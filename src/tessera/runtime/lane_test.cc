#include "tessera/runtime/lane.h"

#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/runtime/stream_thread.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(Lane, EndsItemsInTheOrderInWhichTheyWereIssued) {
  Lane lane;
  const Lane::Ticket first = lane.issue();
  const Lane::Ticket second = lane.issue();
  EXPECT_EQ(lane.last(), second);
  EXPECT_TRUE(lane.is_issued(second));
  EXPECT_FALSE(lane.is_issued(second + 1));
  EXPECT_FALSE(lane.done(first));
  lane.finish();
  EXPECT_TRUE(lane.done(first));
  EXPECT_FALSE(lane.done(second));
  lane.wait_for(first);
}

// What failed is none that is done, and neither is what a lane drops when it stops.
TEST(Lane, TellsWhatItsWorkFailedWith) {
  Lane lane;
  const Lane::Ticket first = lane.issue();
  const Lane::Ticket second = lane.issue();
  lane.finish();
  try {
    fail(ErrorCode::kTimeout, "nobody came");
  } catch (...) {
    lane.fail(std::current_exception());
  }
  EXPECT_TRUE(lane.done(first));
  EXPECT_EQ(error_of(ErrorCode::kTimeout, [&] { lane.done(second); }), "nobody came");
  EXPECT_EQ(error_of(ErrorCode::kTimeout, [&] { lane.wait_for(second); }), "nobody came");

  Lane stopped;
  const Lane::Ticket dropped = stopped.issue();
  stopped.stop();
  EXPECT_FALSE(stopped.done(dropped));
  EXPECT_EQ(error_of(ErrorCode::kPeerFailure, [&] { stopped.wait_for(dropped); }),
            "the streams of the step have been ended");
}

TEST(Lane, WakesThoseThatWait) {
  for (const bool stops : {false, true}) {
    Lane lane;
    const Lane::Ticket ticket = lane.issue();
    std::atomic<int> num_done = 0;
    std::atomic<int> num_refused = 0;
    std::vector<std::jthread> waiting;
    for (int i = 0; i < 3; ++i) {
      waiting.emplace_back([&] {
        try {
          lane.wait_for(ticket);
          ++num_done;
        } catch (const Error&) {
          ++num_refused;
        }
      });
    }
    stops ? lane.stop() : lane.finish();
    waiting.clear();
    EXPECT_EQ(num_done, stops ? 0 : 3);
    EXPECT_EQ(num_refused, stops ? 3 : 0);
  }
}

TEST(StreamThread, RunsTheItemsOfEveryStep) {
  Lane lane;
  std::vector<std::pair<std::size_t, Lane::Ticket>> runs;
  {
    const StreamThread thread(
        lane, 2, [&](std::size_t item, Lane::Ticket step) { runs.emplace_back(item, step); });
    for (int i = 0; i < 3; ++i) {
      lane.issue();
    }
    lane.wait_for(lane.last());
  }
  EXPECT_THAT(runs, ElementsAre(Pair(0, 0), Pair(1, 0), Pair(0, 1)));
}

TEST(StreamThread, EndsWithTheFirstItemThatFails) {
  Lane lane;
  std::size_t num_runs = 0;
  {
    const StreamThread thread(lane, 3, [&](std::size_t item, Lane::Ticket) {
      ++num_runs;
      TESSERA_REQUIRE(item != 1, ErrorCode::kInvalidData, "item {}", item);
    });
    for (int i = 0; i < 3; ++i) {
      lane.issue();
    }
    EXPECT_EQ(error_of(ErrorCode::kInvalidData, [&] { lane.wait_for(lane.last()); }), "item 1");
  }
  EXPECT_EQ(num_runs, 2U);
}

}  // namespace
}  // namespace tessera
