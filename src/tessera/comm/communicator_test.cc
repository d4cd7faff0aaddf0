// What every communicator must do, on ranks that are threads.

#include "tessera/comm/communicator.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/comm/axis_communicators.h"
#include "tessera/comm/channel.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/comm/testing/conformance.h"

namespace tessera {
namespace {

using testing::HasSubstr;

// Runs body(world) on every rank; returns what each says, or its error.
std::vector<std::string> on_ranks(LocalWorld& world,
                                  const std::function<std::string(World&)>& body) {
  std::vector<std::string> said(static_cast<std::size_t>(world.num_ranks()));
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < world.num_ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<World> self = world.join(rank);
      try {
        said[static_cast<std::size_t>(rank)] = body(*self);
      } catch (const std::exception& error) {
        said[static_cast<std::size_t>(rank)] = format("error: {}", error.what());
        self->abort(error.what());
      }
    });
  }
  threads.clear();
  return said;
}

TEST(Communicator, PartsCoverEverythingOnce) {
  for (const std::int64_t stride : {1, 3, 8}) {
    for (std::int64_t size = 0; size <= 4 * stride; ++size) {
      std::int64_t end = 0;
      for (std::int64_t rank = 0; rank < 4; ++rank) {
        const Part part = part_of(rank, stride, size);
        EXPECT_EQ(part.begin, end);
        EXPECT_LE(part.size, stride);
        end += part.size;
      }
      EXPECT_EQ(end, size);
    }
  }
}

class ConformanceTest : public testing::TestWithParam<std::tuple<ConformanceCase, std::int64_t>> {};

INSTANTIATE_TEST_SUITE_P(Local,
                         ConformanceTest,
                         testing::Combine(testing::ValuesIn(conformance_cases().begin(),
                                                            conformance_cases().end()),
                                          testing::Values(1, 2, 3, 4, 7)),
                         [](const auto& param) {
                           return format(
                               "{}On{}", std::get<0>(param.param).name, std::get<1>(param.param));
                         });

TEST_P(ConformanceTest, Holds) {
  const auto& [conformance, num_ranks] = GetParam();
  LocalWorld world(num_ranks, {.deadline_seconds = 20});
  const auto said = on_ranks(world, [&](World& self) {
    conformance.run(self);
    self.leave();
    return std::string();
  });
  for (const std::string& each : said) {
    EXPECT_EQ(each, "");
  }
}

class FailureTest : public testing::TestWithParam<std::tuple<FailureCase, std::int64_t>> {};

INSTANTIATE_TEST_SUITE_P(Local,
                         FailureTest,
                         testing::Combine(testing::ValuesIn(failure_cases().begin(),
                                                            failure_cases().end()),
                                          testing::Values(2, 4)),
                         [](const auto& param) {
                           return format(
                               "{}On{}", std::get<0>(param.param).name, std::get<1>(param.param));
                         });

TEST_P(FailureTest, EndsOnEveryRank) {
  const auto& [failure, num_ranks] = GetParam();
  LocalWorld world(num_ranks, {.deadline_seconds = 0.5});
  const auto said = on_ranks(world, [&](World& self) { return expect_failure(failure, self); });
  for (const std::string& each : said) {
    EXPECT_THAT(each, testing::Not(HasSubstr("error: ")));
  }
}

class PatienceTest : public testing::TestWithParam<std::tuple<PatienceCase, std::int64_t>> {};

INSTANTIATE_TEST_SUITE_P(Local,
                         PatienceTest,
                         testing::Combine(testing::ValuesIn(patience_cases().begin(),
                                                            patience_cases().end()),
                                          testing::Values(2, 4)),
                         [](const auto& param) {
                           return format(
                               "{}On{}", std::get<0>(param.param).name, std::get<1>(param.param));
                         });

TEST_P(PatienceTest, OutlastsTheDeadline) {
  constexpr double kDeadlineSeconds = 0.5;
  const auto& [patience, num_ranks] = GetParam();
  LocalWorld world(num_ranks, {.deadline_seconds = kDeadlineSeconds});
  const auto said = on_ranks(world, [&](World& self) {
    patience.run(self, kDeadlineSeconds);
    return std::string();
  });
  for (const std::string& each : said) {
    EXPECT_EQ(each, "");
  }
}

// What a rank sends is counted by the operation, or told where nobody sees that one.
TEST(AxisCommunicators, CountWhatARankSends) {
  const MeshAxis axis = {.name = "data", .size = 2, .level = "node"};
  const Mesh mesh = {.axes = {axis}, .levels = {}};
  LocalWorld world(mesh.num_ranks());
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<World> self = world.join(rank);
      AxisCommunicators communicators(*self, mesh);
      const std::vector<std::byte> part(8);
      std::vector<std::byte> all(16);
      communicators.along("data", TrafficClass::kState).all_gather(part, all, part.size());
      const Traffic once = communicators.sent();
      EXPECT_EQ(once, Traffic({{"data", {8, 0, 0}}}));
      communicators.add_sent(once);
      EXPECT_EQ(communicators.sent(), Traffic({{"data", {16, 0, 0}}}));
    });
  }
}

// The first place along "pipeline" of each "data" rank sends to the second.
TEST(AxisCommunicators, ChannelsJoinEqualPlacesOfTheOtherAxes) {
  const Mesh mesh = {.axes = {{.name = "data", .size = 2, .stride = 1, .level = "node"},
                              {.name = "pipeline", .size = 2, .stride = 2, .level = "node"}},
                     .levels = {}};
  LocalWorld world(mesh.num_ranks());
  const auto said = on_ranks(world, [&](World& self) -> std::string {
    AxisCommunicators communicators(self, mesh);
    const auto channel = [&](std::int64_t number, TrafficClass traffic_class) -> Channel& {
      return communicators.channel(
          {{.name = "pipeline", .size = 2}}, {.from = 0, .to = 1, .number = number}, traffic_class);
    };
    const bool sends = self.rank() < 2;
    for (const std::int64_t number : {4, 5}) {
      Channel& end = channel(number, number == 4 ? TrafficClass::kTensor : TrafficClass::kScalar);
      std::vector<std::byte> memory(static_cast<std::size_t>(number));
      memory[0] = std::byte(sends ? self.rank() : 0);
      end.begin(memory);
      while (!end.advance()) {
        std::this_thread::yield();
      }
      EXPECT_EQ(memory[0], std::byte(self.rank() % 2));
    }
    const ClassBytes sent = sends ? ClassBytes{0, 4, 5} : ClassBytes{};
    EXPECT_EQ(communicators.sent(), Traffic({{"data", {}}, {"pipeline", sent}}));
    EXPECT_EQ(&channel(4, TrafficClass::kTensor), &channel(4, TrafficClass::kTensor));
    EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { channel(4, TrafficClass::kState); }),
                HasSubstr("channel 4 from 0 to 1 along pipeline=2 counts as "));
    const auto error_along = [&](const AxisSize& axis) {
      return error_of(ErrorCode::kInvalidArgument, [&] {
        communicators.channel({axis}, {.from = 0, .to = 2}, TrafficClass::kTensor);
      });
    };
    EXPECT_THAT(error_along({.name = "tensor", .size = 2}), HasSubstr("no axis tensor of 2"));
    EXPECT_THAT(error_along({.name = "data", .size = 3}), HasSubstr("no axis data of 3"));
    EXPECT_THAT(error_along({.name = "data", .size = 2}),
                HasSubstr("a channel to or from 2 along data=2: expected places of [0, 2)"));
    return "";
  });
  EXPECT_THAT(said, testing::Each(""));
}

TEST(Communicator, NamesWhoDidNotArrive) {
  LocalWorld world(4, {.deadline_seconds = 0.2});
  const auto said = on_ranks(world, [](World& self) -> std::string {
    const auto group = self.group(std::vector<std::int64_t>{0, 1, 2, 3});
    if (self.rank() == 2) {
      return "";
    }
    try {
      group->barrier();
    } catch (const Error& error) {
      return error.message();
    }
    return "was accepted";
  });
  for (const std::size_t rank : {0U, 1U, 3U}) {
    EXPECT_THAT(said[rank], HasSubstr("no answer within 0.2 s"));
    EXPECT_THAT(said[rank], HasSubstr("missing: rank 2"));
  }
}

}  // namespace
}  // namespace tessera
