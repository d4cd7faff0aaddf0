#include "tessera/launch/rank_launch.h"

#include <array>
#include <cstdint>

#include <gtest/gtest.h>

#include "tessera/runtime/launcher.h"

namespace tessera {
namespace {

// Processes choose what they compute again by what the one with the least room has.
TEST(LeastOfLaunch, IsTheSameForAll) {
  constexpr std::array<std::int64_t, 3> kOwn = {7'000'000'000, 5'999'999'999, 1LL << 40};
  launch_ranks(3, {}, [&](World& world) {
    EXPECT_EQ(least_of_launch(&world, kOwn[static_cast<std::size_t>(world.rank())]), kOwn[1]);
  });
  EXPECT_EQ(least_of_launch(nullptr, kOwn[2]), kOwn[2]);
}

}  // namespace
}  // namespace tessera
