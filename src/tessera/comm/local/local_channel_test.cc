// What ranks that are threads promise beyond what every channel does.

#include "tessera/comm/local/local_channel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/comm/mover.h"
#include "tessera/comm/progress.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using Clock = Channel::Clock;

void finish(World& world, Channel& end) {
  while (true) {
    const std::uint32_t seen = world.bell().rings();
    if (end.advance()) {
      return;
    }
    world.bell().sleep(seen, std::chrono::milliseconds(1));
  }
}

// A host mover whose copies do as they are told.
class ToldMover final : public Mover {
 public:
  explicit ToldMover(std::function<void(const std::byte*, std::span<std::byte>)> copies)
      : copies_(std::move(copies)) {}

  bool is_host() const override { return true; }

  void copy(const std::byte* from, std::span<std::byte> to) const override { copies_(from, to); }

  void copy_rows(const std::byte* /*from*/,
                 std::int64_t /*from_pitch*/,
                 std::byte* /*to*/,
                 std::int64_t /*to_pitch*/,
                 std::int64_t /*bytes*/,
                 std::int64_t /*count*/) const override {}

  void zero(std::span<std::byte> /*to*/) const override {}

  void fold(Fold /*fold*/,
            std::span<const std::byte* const> /*sources*/,
            const Elements& /*out*/,
            std::span<std::byte* const> /*copies*/) const override {}

  void encode(const ConstElements& /*from*/,
              std::int64_t /*padded*/,
              const Encoding& /*encoding*/,
              std::byte* /*to*/) const override {}

  void decode_sum(std::span<const std::byte* const> /*parts*/,
                  const Encoding& /*encoding*/,
                  const Elements& /*to*/) const override {}

  void finish() const override {}

 private:
  std::function<void(const std::byte*, std::span<std::byte>)> copies_;
};

constexpr ChannelKey kKey = {.from = 0, .to = 1};

// The sender's end goes while the receiver reads its memory.
TEST(LocalChannel, MemoryThatIsReadOutlivesTheEndThatGoes) {
  for (const bool aborts : {false, true}) {
    LocalWorld world(2);
    const auto sender = world.join(0);
    const auto receiver = world.join(1);
    std::atomic<bool> is_reading = false;
    std::atomic<bool> is_going = false;
    const ToldMover slow([&](const std::byte* from, std::span<std::byte> to) {
      is_reading = true;
      while (!is_going) {
        std::this_thread::yield();
      }
      std::this_thread::sleep_for(milliseconds(50));
      std::copy_n(from, to.size(), to.begin());
    });
    std::vector<std::byte> received(100);
    const auto in = receiver->channel(kKey, 0, slow);
    std::jthread thread;
    {
      std::vector<std::byte> sent(100, std::byte{5});
      auto out = sender->channel(kKey);
      out->begin(sent);
      in->begin(received);
      thread = std::jthread([&] { in->advance(); });
      while (!is_reading) {
        std::this_thread::yield();
      }
      if (aborts) {
        sender->abort("this rank has had enough");
      }
      is_going = true;
      out.reset();
      std::ranges::fill(sent, std::byte{6});
    }
    thread.join();
    EXPECT_THAT(received, testing::Each(std::byte{5}));
  }
}

// What a sender has taken back is not read, and what a later end sends is.
TEST(LocalChannel, ATransferThatIsTakenBackIsNotRead) {
  LocalWorld world(2);
  const auto sender = world.join(0);
  const auto receiver = world.join(1);
  const auto in = receiver->channel(kKey);
  std::vector<std::byte> received(3);
  in->begin(received);
  {
    std::vector<std::byte> sent(100);  // of another size, which nobody finds out
    const auto out = sender->channel(kKey);
    out->begin(sent);
  }
  EXPECT_FALSE(in->advance());
  const auto out = sender->channel(kKey);
  EXPECT_FALSE(in->advance());
  std::vector<std::byte> sent(3, std::byte{8});
  out->begin(sent);
  EXPECT_FALSE(out->advance());
  EXPECT_TRUE(in->advance());
  EXPECT_TRUE(out->advance());
  EXPECT_EQ(received, sent);
}

TEST(LocalChannel, ASenderWaitsForItsReceiver) {
  LocalWorld world(2);
  const auto sender = world.join(0);
  const auto receiver = world.join(1);
  const auto out = sender->channel(kKey);
  std::vector<std::byte> sent(10, std::byte{1});
  out->begin(sent);
  const std::uint32_t seen = receiver->bell().rings();
  EXPECT_FALSE(out->advance());
  const auto in = receiver->channel(kKey);
  EXPECT_FALSE(out->advance());
  std::vector<std::byte> received(10);
  in->begin(received);
  EXPECT_FALSE(out->advance());
  const std::uint32_t before = sender->bell().rings();
  EXPECT_TRUE(in->advance());
  EXPECT_NE(sender->bell().rings(), before);
  EXPECT_TRUE(out->advance());
  out->begin(sent);
  EXPECT_NE(receiver->bell().rings(), seen);
}

TEST(LocalChannel, AMoverThatFailsHoldsUpNobody) {
  LocalWorld world(2);
  const auto sender = world.join(0);
  const auto receiver = world.join(1);
  const ToldMover broken([](const std::byte* /*from*/, std::span<std::byte> /*to*/) {
    fail(ErrorCode::kDeviceError, "the device is gone");
  });
  const auto in = receiver->channel(kKey, 0, broken);
  const auto out = sender->channel(kKey);
  std::vector<std::byte> memory(10);
  std::vector<std::byte> sent(10);
  out->begin(sent);
  in->begin(memory);
  EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { in->advance(); }),
              HasSubstr("the device is gone"));
  receiver->abort("rank 1 failed");  // as a rank's end does
  EXPECT_THAT(error_of(ErrorCode::kPeerFailure, [&] { out->advance(); }),
              HasSubstr("rank 1 failed"));
}

std::string late_error(World& world, Channel& end) {
  return error_of(ErrorCode::kTimeout, [&] { finish(world, end); });
}

TEST(LocalChannel, SaysWhoWaitsForWhomAndWhere) {
  constexpr double kDeadlineSeconds = 0.1;
  const auto names = [] {
    return std::vector<std::string>{"F of microbatch 0", "B of microbatch 0"};
  };
  for (const bool sends : {false, true}) {
    LocalWorld world(2, {.deadline_seconds = kDeadlineSeconds});
    const auto sender = world.join(0);
    const auto receiver = world.join(1);
    sender->progress().add_calls(names());
    sender->progress().start_call(0);
    receiver->progress().add_calls(names());
    receiver->progress().start_call(1);
    World& waits = sends ? *sender : *receiver;
    const auto end = waits.channel({.from = 0, .to = 1, .number = 7});
    std::vector<std::byte> memory(12);
    end->begin(memory);
    EXPECT_THAT(late_error(waits, *end),
                HasSubstr(sends ? "rank 0 waits at call 0 (F of microbatch 0) to send to rank 1, "
                                  "which is at call 1 (B of microbatch 0): transfer 0 of channel "
                                  "7, 12 bytes: no answer within 0.1 s"
                                : "rank 1 waits at call 1 (B of microbatch 0) to receive from rank "
                                  "0, which is at call 0 (F of microbatch 0): transfer 0 of "
                                  "channel 7, 12 bytes: no answer within 0.1 s"));
  }
}

// A thread that looks at transfers is no sign of a rank that works.
TEST(LocalChannel, ARankThatOnlyLooksIsNotWaitedFor) {
  LocalWorld world(2, {.deadline_seconds = 0.2});
  const auto sender = world.join(0);
  const auto receiver = world.join(1);
  sender->progress().finish_instruction();
  std::atomic<bool> is_over = false;
  std::jthread thread([&] {
    while (!is_over) {
      sender->exchange_progress();
      sender->progress().start_call(3);
      sender->bell().sleep(sender->bell().rings(), milliseconds(1));
    }
  });
  const auto in = receiver->channel(kKey);
  std::vector<std::byte> memory(12);
  in->begin(memory);
  EXPECT_THAT(late_error(*receiver, *in),
              HasSubstr("rank 1 waits before its first call to receive"));
  is_over = true;
}

// Two pairs: 1 ms inside a pair, 10 ms and 1 MB/s (of a link that a pair shares: half of 2 MB/s)
// between them.
std::vector<Level> two_pairs() {
  return {{.name = "pair", .size = 2, .latency = 1e-3},
          {.name = "node", .size = 2, .bandwidth = 2e6, .latency = 10e-3, .shared = true}};
}

// Seconds from the begin of transfers of `bytes` on all of these channels to their end. What a
// throttle promises is how long that takes at least.
double seconds_of(const std::vector<ChannelKey>& keys, std::size_t bytes) {
  LocalWorld world(4, {}, two_pairs());
  std::vector<std::unique_ptr<World>> ranks;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    ranks.push_back(world.join(rank));
  }
  std::vector<std::unique_ptr<Channel>> ends;
  std::vector<std::vector<std::byte>> memory;
  for (const ChannelKey& key : keys) {
    ends.push_back(ranks[static_cast<std::size_t>(key.from)]->channel(key));
    ends.push_back(ranks[static_cast<std::size_t>(key.to)]->channel(key));
    memory.emplace_back(bytes, std::byte{3});
    memory.emplace_back(bytes);
  }
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i < ends.size(); ++i) {
    ends[i]->begin(memory[i]);
  }
  for (bool are_done = false; !are_done;) {
    are_done = true;
    for (const auto& end : ends) {
      are_done = end->advance() && are_done;
      if (const auto due = end->due()) {
        std::this_thread::sleep_until(*due);
      }
    }
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (const auto& each : memory) {
    EXPECT_THAT(each, testing::Each(std::byte{3}));
  }
  return seconds;
}

TEST(LocalChannel, TransfersKeepThePaceOfTheirLevel) {
  EXPECT_GE(seconds_of({{.from = 0, .to = 1}}, 20'000), 1e-3);
  EXPECT_GE(seconds_of({{.from = 1, .to = 2}}, 20'000), 10e-3 + 20e-3);
  // By one link, out of a rank and into one.
  EXPECT_GE(seconds_of({{.from = 0, .to = 2}, {.from = 0, .to = 3}}, 20'000), 10e-3 + 40e-3);
  EXPECT_GE(seconds_of({{.from = 0, .to = 2}, {.from = 1, .to = 2}}, 20'000), 10e-3 + 40e-3);
  EXPECT_GE(seconds_of({{.from = 0, .to = 2}, {.from = 0, .to = 2, .number = 1}}, 20'000),
            10e-3 + 40e-3);
}

// Only who does not come is late.
TEST(LocalChannel, ASlowLinkHasNoDeadline) {
  LocalWorld world(2, {.deadline_seconds = 0.02}, {{.name = "node", .size = 2, .latency = 0.1}});
  const auto sender = world.join(0);
  const auto receiver = world.join(1);
  const auto out = sender->channel(kKey);
  const auto in = receiver->channel(kKey);
  std::vector<std::byte> sent(10, std::byte{3});
  std::vector<std::byte> received(10);
  out->begin(sent);
  in->begin(received);
  in->advance();
  std::this_thread::sleep_for(milliseconds(50));
  out->advance();
  finish(*receiver, *in);
  EXPECT_TRUE(out->advance());
  EXPECT_EQ(received, sent);
}

}  // namespace
}  // namespace tessera
