#include "tessera/backend/cpu/context.h"

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/mesh/axes.h"

namespace tessera::cpu {
namespace {

using ::testing::HasSubstr;

TEST(Context, LooksUpTheLevelsOfACollectiveOnce) {
  LocalWorld ranks(2);
  const std::unique_ptr<World> world = ranks.join(0);
  constexpr std::array<std::int64_t, 2> kBoth = {0, 1};
  const std::unique_ptr<Communicator> pair = world->group(kBoth);
  std::map<std::string, int, std::less<>> lookups;
  Context context(1);
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument,
                       [&] { context.levels(parse_axes("data.pair=2"), TrafficClass::kState); }),
              HasSubstr("a collective along data.pair, but its stream has no communicators"));
  context.set_communicators([&](std::string_view axis, TrafficClass /*class*/) -> Communicator& {
    ++lookups[std::string(axis)];
    return *pair;
  });
  const std::span<Communicator* const> levels =
      context.levels(parse_axes("data.pair=2 data.node=1"), TrafficClass::kState);
  ASSERT_EQ(levels.size(), 1U);  // an axis of one rank is no level
  EXPECT_EQ(levels[0], pair.get());
  EXPECT_TRUE(context.levels(parse_axes(""), TrafficClass::kState).empty());
  EXPECT_EQ(context.levels(parse_axes("data.pair=2 data.node=1"), TrafficClass::kState).data(),
            levels.data());
  EXPECT_EQ(lookups, (std::map<std::string, int, std::less<>>{{"data.pair", 1}}));
  EXPECT_THAT(error_of(ErrorCode::kInternal,
                       [&] { context.levels(parse_axes("data.node=4"), TrafficClass::kState); }),
              HasSubstr("axis data.node has 2 ranks, the program was made for 4"));
}

}  // namespace
}  // namespace tessera::cpu
