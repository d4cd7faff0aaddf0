#include "tessera/comm/mpi/gossip.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::ElementsAre;

// What a rank has to tell; empty where nothing.
Gossip::News next_of(Gossip& gossip) {
  return gossip.next().value_or(Gossip::News());
}

// The ranks of a chain: 0 - 1 - 2.
TEST(Gossip, WorkIsHeardOfByEveryRank) {
  Gossip first(0);
  Gossip second(0);
  Gossip third(0);
  first.add_peer(1);
  second.add_peer(0);
  second.add_peer(2);
  third.add_peer(1);
  const std::uint64_t before = third.finished();
  first.own().finish_instruction();
  const Gossip::News told = next_of(first);
  EXPECT_THAT(told.peers, ElementsAre(1));
  const Gossip::News passed_on = second.hear(0, told.bytes).value_or(Gossip::News());
  EXPECT_THAT(passed_on.peers, ElementsAre(2));
  EXPECT_THAT(third.hear(1, passed_on.bytes).value_or(Gossip::News()).peers, testing::IsEmpty());
  EXPECT_GT(third.finished(), before);
  // The same again is no news.
  const std::uint64_t after = second.finished();
  EXPECT_FALSE(second.hear(0, told.bytes).has_value());
  EXPECT_EQ(second.finished(), after);
}

// Ranks that talk but do not work raise nothing, however long they do.
TEST(Gossip, TalkRaisesNothing) {
  Gossip first(0);
  Gossip second(0);
  first.add_peer(1);
  second.add_peer(0);
  first.own().finish_instruction();
  second.hear(0, next_of(first).bytes);
  const std::uint64_t before = first.finished() + second.finished();
  for (std::size_t call = 0; call < 10; ++call) {
    first.own().start_call(call);
    second.own().start_call(call);
    if (const auto told = first.next()) {
      second.hear(0, told->bytes);
    }
    if (const auto told = second.next()) {
      first.hear(1, told->bytes);
    }
  }
  EXPECT_EQ(first.finished() + second.finished(), before);
}

TEST(Gossip, TellsWhereARankIs) {
  Gossip first(0);
  Gossip second(0);
  first.add_peer(1);
  first.own().add_calls({"F of microbatch 0"});
  EXPECT_EQ(second.place_of(0), "not heard of");
  first.own().start_call(0);
  second.hear(0, next_of(first).bytes);
  EXPECT_EQ(second.place_of(0), "at call 0 (F of microbatch 0)");
  EXPECT_FALSE(first.next().has_value());
}

// Eight times within a deadline, but others' news at once.
TEST(Gossip, ARankTellsOnlySoOften) {
  Gossip first(3600);
  Gossip second(0);
  first.add_peer(1);
  second.add_peer(0);
  first.own().finish_instruction();
  EXPECT_TRUE(first.next().has_value());
  first.own().finish_instruction();
  EXPECT_FALSE(first.next().has_value());
  for (int i = 0; i < 3; ++i) {
    second.own().finish_instruction();
    const std::uint64_t before = first.finished();
    first.hear(1, next_of(second).bytes);
    EXPECT_EQ(first.finished() > before, i > 0);
  }
}

TEST(Gossip, WhoHasLeftTellsNobody) {
  Gossip first(0);
  Gossip second(0);
  first.add_peer(1);
  second.add_peer(0);
  second.add_peer(2);
  first.own().finish_instruction();
  const Gossip::News told = next_of(first);
  second.forget_peers();
  second.own().finish_instruction();
  EXPECT_THAT(second.hear(0, told.bytes).value_or(Gossip::News()).peers, testing::IsEmpty());
  EXPECT_THAT(next_of(second).peers, testing::IsEmpty());
}

TEST(Gossip, RefusesWhatNoRankTells) {
  Gossip gossip(0);
  const std::vector<std::byte> bytes(3);
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { gossip.hear(1, bytes); }),
              testing::HasSubstr("a control message of 3 bytes"));
}

}  // namespace
}  // namespace tessera
