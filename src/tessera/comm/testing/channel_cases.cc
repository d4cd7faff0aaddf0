#include "tessera/comm/testing/channel_cases.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "tessera/comm/bell.h"
#include "tessera/comm/channel.h"
#include "tessera/comm/progress.h"

namespace tessera {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::array<std::size_t, 8> kTransferSizes = {0, 1, 5, 63, 4096, 4097, 100'003, 9'000'001};

std::vector<std::int64_t> all_ranks(const World& world) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

bool is_last(const World& world) {
  return world.rank() + 1 == world.size();
}

// Bytes that tell transfers of different seeds apart.
Bytes pattern(std::int64_t seed, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(seed * 41 + static_cast<std::int64_t>(i % 251));
  }
  return bytes;
}

void check_bytes(const Bytes& found, const Bytes& expected, std::int64_t transfer) {
  TESSERA_CHECK(
      found == expected, "transfer {} of {} bytes has other bytes", transfer, expected.size());
}

// Ends that `rank` needs, made in one order by all ranks. Those that one thread of a rank uses at
// the same time have generations of their own, since operations of a generation may come one after
// the other.
struct Wanted {
  ChannelKey key;
  std::int64_t generation = 0;
};

std::vector<std::unique_ptr<Channel>> make_ends(World& world, const std::vector<Wanted>& wanted) {
  std::vector<std::size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return wanted[i].key; });
  std::vector<std::unique_ptr<Channel>> ends(wanted.size());
  for (const std::size_t i : order) {
    ends[i] = world.channel(wanted[i].key, wanted[i].generation);
  }
  return ends;
}

// One look at each of the ends; whether all are done. Sleeps where not.
bool go_on(World& world, const std::vector<Channel*>& ends) {
  const std::uint32_t seen = world.bell().rings();
  std::chrono::microseconds sleep = world.longest_sleep();
  bool are_done = true;
  for (Channel* const end : ends) {
    are_done = end->advance() && are_done;
    if (const auto due = end->due()) {
      sleep = std::min(sleep,
                       std::chrono::ceil<std::chrono::microseconds>(*due - Channel::Clock::now()));
    }
  }
  if (!are_done && sleep.count() > 0) {
    world.bell().sleep(seen, sleep);
  }
  return are_done;
}

// Goes on with the ends until all are done, as the thread of a rank that moves transfers does.
void finish(World& world, const std::vector<Channel*>& ends) {
  while (!go_on(world, ends)) {
    world.exchange_progress();
  }
}

// Channels from each rank to the next, except from the last.
std::vector<std::unique_ptr<Channel>> make_chain(World& world) {
  const std::int64_t rank = world.rank();
  std::vector<Wanted> wanted;
  if (rank > 0) {
    wanted.push_back({.key = {.from = rank - 1, .to = rank}, .generation = (rank - 1) % 2});
  }
  if (!is_last(world)) {
    wanted.push_back({.key = {.from = rank, .to = rank + 1}, .generation = rank % 2});
  }
  return make_ends(world, wanted);
}

// Each rank sends to the next, the last one to nobody; memory is written to as soon as it is the
// rank's again.
void transfers_keep_their_order(World& world) {
  const std::int64_t rank = world.rank();
  const auto ends = make_chain(world);
  Channel* const in = rank > 0 ? ends.front().get() : nullptr;
  Channel* const out = is_last(world) ? nullptr : ends.back().get();
  Bytes received;
  Bytes sent;
  for (std::int64_t transfer = 0; transfer < 80; ++transfer) {
    const auto turn = static_cast<std::size_t>(transfer);
    const std::size_t last = kTransferSizes.size() - (turn < kTransferSizes.size() ? 0 : 1);
    const std::size_t size = kTransferSizes.at(turn % last);
    if (in != nullptr) {
      received.assign(size, std::byte{0});
      in->begin(received);
    }
    if (out != nullptr) {
      sent = pattern(rank + transfer, size);
      out->begin(sent);
    }
    if (in != nullptr) {
      finish(world, {in});
      check_bytes(received, pattern(rank - 1 + transfer, size), transfer);
    }
    if (out != nullptr) {
      finish(world, {out});
      std::ranges::fill(sent, std::byte{0xff});
    }
  }
}

// Two ranks send to each other at the same time.
void both_directions_go_at_once(World& world) {
  const std::int64_t rank = world.rank();
  const std::int64_t peer = rank % 2 == 0 ? rank + 1 : rank - 1;
  if (peer >= world.size()) {
    return;
  }
  const auto ends =
      make_ends(world,
                {{.key = {.from = rank, .to = peer}, .generation = rank < peer ? 0 : 1},
                 {.key = {.from = peer, .to = rank}, .generation = peer < rank ? 0 : 1}});
  for (std::int64_t transfer = 0; transfer < 20; ++transfer) {
    const auto size = static_cast<std::size_t>(1 + transfer * 300'007);
    Bytes sent = pattern(rank + transfer, size);
    Bytes received(size);
    ends[0]->begin(sent);
    ends[1]->begin(received);
    finish(world, {ends[0].get(), ends[1].get()});
    check_bytes(received, pattern(peer + transfer, size), transfer);
  }
}

// Channels between two ranks are apart, whatever the order in which each rank begins.
void channels_are_independent(World& world) {
  if (world.size() == 1 || (world.rank() > 0 && !is_last(world))) {
    return;
  }
  constexpr std::int64_t kChannels = 8;
  std::vector<Wanted> wanted;
  for (std::int64_t i = 0; i < kChannels; ++i) {
    wanted.push_back({.key = {.from = 0, .to = world.size() - 1, .number = i}, .generation = i});
  }
  const auto ends = make_ends(world, wanted);
  const bool sends = world.rank() == 0;
  for (std::int64_t transfer = 0; transfer < 10; ++transfer) {
    std::vector<Bytes> memory;
    std::vector<Channel*> all;
    for (std::int64_t i = 0; i < kChannels; ++i) {
      const auto size = static_cast<std::size_t>(1 + 1000 * i);
      memory.push_back(sends ? pattern(10 * i + transfer, size) : Bytes(size));
    }
    for (std::int64_t i = 0; i < kChannels; ++i) {
      const auto place = static_cast<std::size_t>(sends ? i : kChannels - 1 - i);
      all.push_back(ends[place].get());
      all.back()->begin(memory[place]);
    }
    finish(world, all);
    for (std::int64_t i = 0; i < kChannels; ++i) {
      const Bytes& each = memory[static_cast<std::size_t>(i)];
      check_bytes(each, pattern(10 * i + transfer, each.size()), transfer);
    }
  }
}

// What each rank sends comes back to it by all the others.
void a_ring_of_channels_turns(World& world) {
  const std::int64_t rank = world.rank();
  const std::int64_t size = world.size();
  if (size == 1) {
    return;
  }
  // Of the channel from `from`: the two of a rank differ.
  const auto generation = [&](std::int64_t from) { return from + 1 == size ? 2 : from % 2; };
  const std::int64_t before = (rank + size - 1) % size;
  const auto ends = make_ends(
      world,
      {{.key = {.from = rank, .to = (rank + 1) % size, .number = 3},
        .generation = generation(rank)},
       {.key = {.from = before, .to = rank, .number = 3}, .generation = generation(before)}});
  Bytes held = pattern(rank, 50'001);
  for (std::int64_t hop = 0; hop < size; ++hop) {
    Bytes next(held.size());
    ends[0]->begin(held);
    ends[1]->begin(next);
    finish(world, {ends[0].get(), ends[1].get()});
    held = std::move(next);
    check_bytes(held, pattern((rank + 2 * size - 1 - hop) % size, held.size()), hop);
  }
}

// One of each key and generation after the other.
void channels_are_made_again(World& world) {
  if (world.size() == 1 || world.rank() > 1) {
    return;
  }
  for (std::int64_t transfer = 0; transfer < 20; ++transfer) {
    const auto end = world.channel({.from = 1, .to = 0});
    Bytes memory = world.rank() == 1 ? pattern(transfer, 100) : Bytes(100);
    end->begin(memory);
    finish(world, {end.get()});
    check_bytes(memory, pattern(transfer, 100), transfer);
  }
}

// Another thread moves transfers while the rank's own takes part in collectives.
void transfers_run_beside_collectives(World& world) {
  const auto group = world.group(all_ranks(world));
  const std::int64_t rank = world.rank();
  const std::int64_t peer = rank % 2 == 0 ? rank + 1 : rank - 1;
  std::vector<std::unique_ptr<Channel>> ends;
  if (peer < world.size()) {
    ends = make_ends(
        world,
        {{.key = {.from = std::min(rank, peer), .to = std::max(rank, peer)}, .generation = 1}});
  }
  std::exception_ptr failure;
  {
    const std::jthread mover([&] {
      try {
        for (std::int64_t transfer = 0; transfer < 50 && !ends.empty(); ++transfer) {
          Bytes memory = rank < peer ? pattern(transfer, 5000) : Bytes(5000);
          ends[0]->begin(memory);
          finish(world, {ends[0].get()});
          check_bytes(memory, pattern(transfer, 5000), transfer);
        }
      } catch (const Error& error) {
        failure = std::current_exception();
        world.abort(error.what());
      }
    });
    for (int round = 0; round < 100; ++round) {
      group->barrier();
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

void check_refused_channel(World& world, const ChannelKey& key, const std::string& expected) {
  std::string found = "was accepted";
  try {
    world.channel(key);
  } catch (const Error& error) {
    found = error.code() == ErrorCode::kInvalidArgument ? error.message() : error.what();
  }
  TESSERA_CHECK(found == expected, "{}: expected {}", found, expected);
}

void refuses_bad_channels(World& world) {
  const std::int64_t rank = world.rank();
  const std::int64_t size = world.size();
  for (const std::int64_t to : {rank, size, std::int64_t{-1}}) {
    check_refused_channel(
        world,
        {.from = rank, .to = to},
        format("a channel from rank {} to rank {}: expected two ranks of [0, {})", rank, to, size));
  }
  if (size > 2) {
    const std::int64_t from = (rank + 1) % size;
    const std::int64_t to = (rank + 2) % size;
    check_refused_channel(world,
                          {.from = from, .to = to},
                          format("a channel from rank {} to rank {}: expected rank {} to be one of "
                                 "them",
                                 from,
                                 to,
                                 rank));
  }
}

constexpr std::array<ConformanceCase, 7> kChannelCases = {{
    {"TransfersKeepTheirOrder", transfers_keep_their_order},
    {"BothDirectionsGoAtOnce", both_directions_go_at_once},
    {"ChannelsAreIndependent", channels_are_independent},
    {"ARingOfChannelsTurns", a_ring_of_channels_turns},
    {"ChannelsAreMadeAgain", channels_are_made_again},
    {"TransfersRunBesideCollectives", transfers_run_beside_collectives},
    {"RefusesBadChannels", refuses_bad_channels},
}};

// A channel from the last rank to each of the others: this rank's end, or, on the last, the first
// one's.
struct FromLast {
  explicit FromLast(World& world) {
    const std::int64_t last = world.size() - 1;
    std::vector<Wanted> wanted;
    for (std::int64_t to = 0; to < last; ++to) {
      if (world.rank() == last || world.rank() == to) {
        wanted.push_back({.key = {.from = last, .to = to}, .generation = 0});
      }
    }
    ends = make_ends(world, wanted);
  }

  std::vector<std::unique_ptr<Channel>> ends;
};

void transfer(World& world, Channel& end, std::size_t size) {
  Bytes memory(size);
  end.begin(memory);
  finish(world, {&end});
}

// The last rank never sends.
void a_transfer_never_comes(World& world) {
  world.progress().add_calls({"F of microbatch 0", "B of microbatch 0"});
  world.progress().start_call(1);
  const FromLast from_last(world);
  world.group(all_ranks(world))->barrier();  // nobody's call is unknown to the others
  if (!is_last(world)) {
    transfer(world, *from_last.ends[0], 1000);
  }
}

void disagree_on_transfer(World& world, std::size_t size) {
  const auto group = world.group(all_ranks(world));
  if (world.rank() == 0 || is_last(world)) {
    const auto end = world.channel({.from = 0, .to = world.size() - 1});
    group->barrier();
    transfer(world, *end, world.rank() == 0 ? size : size + size / 8);
  } else {
    group->barrier();
  }
  group->barrier();  // which the receiver does not come to
}

void members_disagree_on_transfer(World& world) {
  disagree_on_transfer(world, 32);
}

void members_disagree_on_long_transfer(World& world) {
  disagree_on_transfer(world, 800'000);
}

// The last rank gives up while the others wait for what it would send, or are about to.
void a_rank_aborts_a_transfer(World& world) {
  const FromLast from_last(world);
  world.group(all_ranks(world))->barrier();
  if (is_last(world)) {
    world.abort("the last rank lost its data");
  }
  transfer(world, *from_last.ends[0], 1000);
}

}  // namespace

std::span<const ConformanceCase> channel_cases() {
  return kChannelCases;
}

std::vector<FailureCase> channel_failures() {
  const std::vector<ErrorCode> late = {ErrorCode::kTimeout, ErrorCode::kPeerFailure};
  const std::vector<ErrorCode> disagree = {ErrorCode::kInternal, ErrorCode::kPeerFailure};
  return {
      {.name = "TransferNeverComes",
       .run = a_transfer_never_comes,
       .codes = late,
       .text = "waits at call 1 (B of microbatch 0) to receive from rank",
       .last_rank_returns = true},
      {.name = "MembersDisagreeOnTransfer",
       .run = members_disagree_on_transfer,
       .codes = disagree,
       .text = "rank 0 sends 32 bytes"},
      {.name = "MembersDisagreeOnLongTransfer",
       .run = members_disagree_on_long_transfer,
       .codes = disagree,
       .text = "rank 0 sends 800000 bytes"},
      {.name = "ARankAbortsATransfer",
       .run = a_rank_aborts_a_transfer,
       .codes = {ErrorCode::kPeerFailure},
       .text = "the last rank lost its data"},
  };
}

namespace {

// Finishes an instruction every eighth of a deadline, `deadlines` long.
void work(World& world, double deadline_seconds, int deadlines) {
  constexpr int kInstructions = 8;
  for (int i = 0; i < kInstructions * deadlines; ++i) {
    std::this_thread::sleep_for(std::chrono::duration<double>(deadline_seconds / kInstructions));
    world.progress().finish_instruction();
    world.exchange_progress();
  }
}

// Each rank has from the one before it what it sends to the next; the first one works for long
// before it sends. So does a pipeline that fills.
void receivers_wait_for_a_rank_that_works(World& world, double deadline_seconds) {
  const std::int64_t rank = world.rank();
  const auto ends = make_chain(world);
  Bytes memory = rank == 0 ? pattern(7, 5000) : Bytes(5000);
  if (rank == 0) {
    work(world, deadline_seconds, 3);
  } else {
    ends.front()->begin(memory);
    finish(world, {ends.front().get()});
    check_bytes(memory, pattern(7, 5000), 0);
  }
  if (!is_last(world)) {
    ends.back()->begin(memory);
    finish(world, {ends.back().get()});
  }
}

// The others wait in a collective.
void members_wait_for_a_rank_that_works(World& world, double deadline_seconds) {
  const std::int64_t rank = world.rank();
  const auto ends = make_chain(world);  // by which ranks hear of each other
  const auto group = world.group(all_ranks(world));
  group->barrier();
  if (rank == 0) {
    work(world, deadline_seconds, 3);
  }
  group->barrier();
}

constexpr std::array<PatienceCase, 2> kPatienceCases = {{
    {"ReceiversWaitForARankThatWorks", receivers_wait_for_a_rank_that_works},
    {"MembersWaitForARankThatWorks", members_wait_for_a_rank_that_works},
}};

}  // namespace

std::span<const PatienceCase> patience_cases() {
  return kPatienceCases;
}

}  // namespace tessera
