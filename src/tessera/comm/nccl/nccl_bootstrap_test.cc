#include "tessera/comm/nccl/nccl_bootstrap.h"

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/comm/nccl/nccl_plugin.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr std::int64_t kRanks = 3;

// Runs body(group) on the members of a group of all ranks, listed backwards, as threads; returns
// what each says by its place, or its error.
std::vector<std::string> on_members(const std::function<std::string(Communicator&)>& body,
                                    double deadline_seconds = 60) {
  LocalWorld world(kRanks, {.deadline_seconds = deadline_seconds});
  std::vector<std::string> said(kRanks);
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<World> self = world.join(rank);
      const std::vector<std::int64_t> members = {2, 1, 0};
      const auto group = self->group(members);
      std::string& own = said[static_cast<std::size_t>(group->rank())];
      try {
        own = body(*group);
      } catch (const Error& error) {
        own = format("{}: {}", to_string(error.code()), error.message());
        self->abort(error.message());
      }
    });
  }
  threads.clear();
  return said;
}

DeviceUuid device(int number) {
  DeviceUuid uuid = {};
  uuid[15] = static_cast<std::byte>(number);
  return uuid;
}

constexpr std::int64_t kMembers[] = {2, 1, 0};

TEST(NcclBootstrap, TheFirstMembersIdReachesAll) {
  const auto said = on_members([](Communicator& group) {
    const NcclId id = share_id(group, [&] {
      NcclId made = {};
      made.front() = static_cast<std::byte>(7 + group.rank());
      made.back() = std::byte{9};
      return made;
    });
    return format("{} {}", static_cast<int>(id.front()), static_cast<int>(id.back()));
  });
  EXPECT_THAT(said, Each("7 9"));
}

TEST(NcclBootstrap, AnIdThatCannotBeMadeEndsTheRunForAll) {
  const auto said = on_members([](Communicator& group) -> std::string {
    share_id(group, []() -> NcclId { fail(ErrorCode::kDeviceError, "no network"); });
    return "has an id";
  });
  EXPECT_EQ(said[0], format("{}: no network", to_string(ErrorCode::kDeviceError)));
  EXPECT_EQ(said[1], format("{}: no network", to_string(ErrorCode::kPeerFailure)));
  EXPECT_EQ(said[2], said[1]);
}

TEST(NcclBootstrap, AMemberThatStaysAwayIsNamed) {
  const auto said = on_members(
      [](Communicator& group) -> std::string {
        if (group.rank() == 1) {
          return "stays away";
        }
        share_id(group, [] { return NcclId(); });
        return "has an id";
      },
      1);
  EXPECT_THAT(said[0] + said[2], HasSubstr("no answer within 1 s"));
  EXPECT_THAT(said[0] + said[2], HasSubstr("missing: rank 1"));
}

TEST(NcclBootstrap, DevicesComeInTheOrderOfMembers) {
  const auto said = on_members([](Communicator& group) {
    std::string text;
    const auto own = device(10 + static_cast<int>(group.rank()));
    for (const DeviceUuid& each : introduce_devices(group, kMembers, own)) {
      text += format("{} ", static_cast<int>(each[15]));
    }
    return text;
  });
  EXPECT_THAT(said, Each("10 11 12 "));
}

TEST(NcclBootstrap, TwoRanksOnOneDeviceAreRefused) {
  const auto said = on_members([](Communicator& group) -> std::string {
    introduce_devices(group, kMembers, device(group.rank() == 1 ? 4 : 5));
    return "was accepted";
  });
  EXPECT_THAT(said,
              Each(AllOf(HasSubstr("ranks 2 and 0 are on one GPU, where NCCL allows one rank"),
                         HasSubstr("tessera doctor"))));
}

// Of a process without what the caller's environment says of NCCL.
class NcclEnvironment : public testing::Test {
 protected:
  void SetUp() override { forget(); }

  void TearDown() override { forget(); }

  static std::string value(const char* name) {
    const char* const found = std::getenv(name);
    return found == nullptr ? "unset" : found;
  }

  // What it warns of.
  static std::string set(bool deterministic) {
    testing::internal::CaptureStderr();
    set_nccl_environment(deterministic);
    return testing::internal::GetCapturedStderr();
  }

 private:
  static void forget() {
    for (const char* const name :
         {"NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_GRAPH_MIXING_SUPPORT", "NCCL_NVLS_ENABLE"}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(NcclEnvironment, GroupsHaveOneOrderAndSumsRepeat) {
  EXPECT_EQ(set(true), "");
  EXPECT_EQ(value("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
  EXPECT_EQ(value("NCCL_GRAPH_MIXING_SUPPORT"), "0");
  EXPECT_EQ(value("NCCL_NVLS_ENABLE"), "0");
}

TEST_F(NcclEnvironment, SwitchesAddUpWhereSumsNeedNotRepeat) {
  EXPECT_EQ(set(false), "");
  EXPECT_EQ(value("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
  EXPECT_EQ(value("NCCL_NVLS_ENABLE"), "unset");
}

TEST_F(NcclEnvironment, WhatTheUserSetsStays) {
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
  ::setenv("NCCL_GRAPH_MIXING_SUPPORT", "1", 1);
  ::setenv("NCCL_NVLS_ENABLE", "2", 1);
  EXPECT_EQ(set(false), "");
  EXPECT_THAT(set(true),
              AllOf(HasSubstr("NCCL_NVLS_ENABLE=2 in the environment"),
                    HasSubstr("set run.deterministic = false")));
  EXPECT_EQ(value("NCCL_LAUNCH_ORDER_IMPLICIT"), "0");
  EXPECT_EQ(value("NCCL_GRAPH_MIXING_SUPPORT"), "1");
  EXPECT_EQ(value("NCCL_NVLS_ENABLE"), "2");
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  EXPECT_EQ(set(true), "");
}

TEST(NcclPlugin, WhereItIsMissingTheErrorSaysWhatToDo) {
  const std::vector<std::string> places = {"/no/such/libtessera_nccl.so"};
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { load_nccl_plugin(places); }),
              AllOf(HasSubstr("the plugin libtessera_nccl.so"),
                    HasSubstr("/no/such/libtessera_nccl.so: cannot open shared object file"),
                    HasSubstr("developer.nvidia.com/nccl")));
}

TEST(NcclPlugin, RefusesAnotherLibrary) {
  const std::vector<std::string> places = {TESSERA_BINARY_DIR "/libtessera.so"};
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { load_nccl_plugin(places); }),
              HasSubstr("has no function tessera_nccl_plugin"));
}

}  // namespace
}  // namespace tessera
