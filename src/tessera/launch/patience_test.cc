#include "tessera/launch/patience.h"

#include <chrono>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"
#include "tessera/runtime/launcher.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr double kForEver = std::numeric_limits<double>::infinity();

// body(rank, group) as each of three ranks, whose collectives wait for half a second.
template <class Body>
void on_ranks(const Body& body) {
  launch_ranks(3, {.world = {.deadline_seconds = 0.5}}, [&](World& world) {
    const std::unique_ptr<Communicator> group = world.group(std::vector<std::int64_t>{0, 1, 2}, 7);
    body(world.rank(), *group);
  });
}

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

TEST(Patience, OutlivesTheDeadlineOfCollectives) {
  EXPECT_THAT(error_of(ErrorCode::kTimeout,
                       [&] {
                         on_ranks([](std::int64_t rank, Communicator& group) {
                           sleep_for(rank == 1 ? 1.2 : 0);
                           group.barrier();
                         });
                       }),
              HasSubstr("missing: rank 1"));
  on_ranks([](std::int64_t rank, Communicator& group) {
    for (int round = 0; round < 2; ++round) {
      Patience patience(group, "asleep", kForEver);
      sleep_for(rank == round ? 1.2 : 0);
      patience.wait();
    }
    group.barrier();
  });
}

TEST(Patience, HasALimitThatNamesTheRank) {
  EXPECT_THAT(error_of(ErrorCode::kTimeout,
                       [&] {
                         on_ranks([](std::int64_t rank, Communicator& group) {
                           Patience patience(group, "asleep", 0.3);
                           sleep_for(rank == 1 ? 1 : 0);
                           patience.wait();
                         });
                       }),
              HasSubstr("rank 1 is still asleep after 0.3 s, the limit of "
                        "checkpoint.deadline_seconds"));
}

TEST(Patience, EndsWithARankThatFails) {
  EXPECT_THAT(error_of(ErrorCode::kInvalidData,
                       [&] {
                         on_ranks([](std::int64_t rank, Communicator& group) {
                           Patience patience(group, "reading", kForEver);
                           TESSERA_REQUIRE(rank != 2, ErrorCode::kInvalidData, "a bad file");
                           patience.wait();
                         });
                       }),
              HasSubstr("a bad file (rank 2)"));
}

}  // namespace
}  // namespace tessera
