#include "tessera/launch/rank_launch.h"

#include <array>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "tessera/runtime/launcher.h"

namespace tessera {
namespace {

// Processes choose by what the one with the least room has, by the machine with most ranks, and by
// what all of them know of an earlier choice.
TEST(RoomOfLaunch, IsTheSameForAll) {
  constexpr std::array<std::int64_t, 3> kOwn = {7'000'000'000, 5'999'999'999, 1LL << 40};
  const std::string text = "6000000000 of 7000000000: 0-3 attention.0";
  for (const bool is_known_to_all : {true, false}) {
    launch_ranks(3, {}, [&](World& world) {
      const RoomToKeep room =
          room_of_launch(&world,
                         {.limit = kOwn[static_cast<std::size_t>(world.rank())],
                          .ranks_here = world.rank() + 1,
                          .chosen = is_known_to_all || world.rank() != 2 ? text : std::string()});
      EXPECT_EQ(room.limit, kOwn[1]);
      EXPECT_EQ(room.ranks_here, 3);
      EXPECT_EQ(room.chosen, is_known_to_all ? text : std::string());
    });
  }
  EXPECT_EQ(room_of_launch(nullptr, {.limit = kOwn[2], .chosen = "own"}).chosen, "own");
}

}  // namespace
}  // namespace tessera
