#include "tessera/comm/local/pace.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace tessera {
namespace {

using std::chrono::milliseconds;
using Time = Links::Clock::time_point;

// Three levels of two: figures are of one device.
std::vector<Level> three_levels() {
  return {{.name = "pair", .size = 2, .bandwidth = 4e6, .latency = 1e-3},
          {.name = "node", .size = 2, .bandwidth = 2e6, .latency = 10e-3, .shared = true},
          {.name = "rack", .size = 2, .bandwidth = 2e6, .latency = 20e-3, .shared = true}};
}

Pace pace_between(std::int64_t from, std::int64_t to) {
  const std::optional<Pace> pace = pace_of(three_levels(), std::array{from, to});
  EXPECT_TRUE(pace.has_value());
  return pace.value_or(Pace());
}

TEST(Pace, IsThatOfTheInnermostLevelOfBothRanks) {
  EXPECT_EQ(pace_between(0, 1).of(4000), milliseconds(1 + 1));
  EXPECT_EQ(pace_between(6, 7).of(4000), milliseconds(1 + 1));
  // A pair shares its link: each device has half of it.
  EXPECT_EQ(pace_between(1, 2).of(4000), milliseconds(10 + 4));
  EXPECT_EQ(pace_between(3, 0).of(4000), milliseconds(10 + 4));
  // Four devices do.
  EXPECT_EQ(pace_between(3, 4).of(4000), milliseconds(20 + 8));
  EXPECT_FALSE(pace_of(three_levels(), std::array<std::int64_t, 2>{0, 8}).has_value());
  EXPECT_FALSE(pace_of({}, std::array<std::int64_t, 2>{0, 1}).has_value());
}

TEST(Pace, FiguresThatAreNotKnownCostNothing) {
  EXPECT_EQ(Pace().of(1'000'000), milliseconds(0));
}

// A link moves one transfer at a time in each direction; its latency holds up no other.
TEST(Links, TransfersOfOneDirectionQueue) {
  Links links;
  const Time start{};
  const Pace pace = pace_between(1, 2);  // 10 ms and 1 MB/s
  EXPECT_EQ(links.take(pace, 1, 2, 3000, start), start + milliseconds(13));
  // Out of the same rank, then into the same rank.
  EXPECT_EQ(links.take(pace, 1, 3, 2000, start), start + milliseconds(3 + 2 + 10));
  EXPECT_EQ(links.take(pace, 0, 2, 2000, start), start + milliseconds(3 + 2 + 10));
  EXPECT_EQ(links.take(pace, 0, 3, 1000, start), start + milliseconds(5 + 1 + 10));
  // The other way, and by another level.
  EXPECT_EQ(links.take(pace, 2, 1, 3000, start), start + milliseconds(13));
  EXPECT_EQ(links.take(pace_between(1, 0), 1, 0, 4000, start), start + milliseconds(2));
  // A link that has been free for a while.
  const Time later = start + milliseconds(500);
  EXPECT_EQ(links.take(pace, 1, 2, 3000, later), later + milliseconds(13));
}

}  // namespace
}  // namespace tessera
