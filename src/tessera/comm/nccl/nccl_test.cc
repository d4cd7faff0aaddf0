// What every communicator must do, over NCCL: on as many ranks as there are GPUs, up to four, as
// threads of this process. On a machine without, over what stands in for them.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/base/thread_team.h"
#include "tessera/comm/channel.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/comm/mover.h"
#include "tessera/comm/nccl/join_under_test.h"
#include "tessera/comm/nccl/staged_world.h"
#include "tessera/comm/testing/conformance.h"

namespace tessera {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

// 0, and `reason` says why, where there is no device.
int count_devices(std::string& reason) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (error != cudaSuccess || count == 0) {
    reason = format("no GPU: {}", cudaGetErrorString(error));
    return 0;
  }
  return count;
}

// Runs body(host) on each of `ranks` ranks; returns their errors.
std::vector<std::string> on_ranks(int ranks,
                                  const WorldOptions& options,
                                  const std::function<void(World&)>& body) {
  set_nccl_environment(true);  // while this is the only thread
  LocalWorld hosts(ranks, options);
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<World> host = hosts.join(rank);
      try {
        body(*host);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
        host->abort(error.what());
      }
    });
  }
  threads.clear();
  return errors;
}

// The same, each rank with a GPU of its own and its end of NCCL, on memory of the host.
std::vector<std::string> on_gpus(int ranks,
                                 double deadline_seconds,
                                 const std::function<void(World&)>& body) {
  const WorldOptions options = {.deadline_seconds = deadline_seconds};
  return on_ranks(ranks, options, [&](World& host) {
    const auto device = static_cast<int>(host.rank());
    StagedWorld world(join_under_test(host, {.device = device, .world = options}));
    body(world);
  });
}

// A stream of this rank's device, on which its groups work.
class RankStream {
 public:
  RankStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }

  ~RankStream() { cudaStreamDestroy(stream_); }

  RankStream(const RankStream&) = delete;
  RankStream& operator=(const RankStream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Recorded;

// What a rank has in a test of recordings.
struct OnStream {
  int rank;
  int ranks;
  NcclWorld& world;
  cudaStream_t stream;
  std::vector<Recorded*>& recordings;  // dropped where groups are given up
  Communicator& host;                  // of all ranks
};

template <class Case>
std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.name);
}

class NcclConformance : public testing::TestWithParam<ConformanceCase> {};

TEST_P(NcclConformance, Holds) {
  std::string reason;
  const int ranks = std::min(count_devices(reason), 4);
  if (ranks == 0) {
    GTEST_SKIP() << reason;
  }
  EXPECT_THAT(on_gpus(ranks, 60, GetParam().run), Each(IsEmpty()));
}

// NCCL has an order of its own in which it folds.
std::vector<ConformanceCase> native_cases() {
  const auto all = conformance_cases();
  std::vector<ConformanceCase> cases(all.begin(), all.end());
  std::erase_if(cases,
                [](const ConformanceCase& each) { return each.name == "SumsFoldInRankOrder"; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All,
                         NcclConformance,
                         testing::ValuesIn(native_cases()),
                         name_of<ConformanceCase>);

class NcclFailure : public testing::TestWithParam<FailureCase> {};

TEST_P(NcclFailure, IsFound) {
  std::string reason;
  const int devices = count_devices(reason);
  if (devices < 2) {
    GTEST_SKIP() << (devices == 1 ? "one GPU, where NCCL allows one rank" : reason);
  }
  EXPECT_THAT(
      on_gpus(2, short_deadline_seconds(), [](World& world) { expect_failure(GetParam(), world); }),
      Each(IsEmpty()));
}

// Members are not compared by NCCL: what they disagree on is found before the first step of a run.
std::vector<FailureCase> native_failures() {
  const auto all = failure_cases();
  std::vector<FailureCase> cases(all.begin(), all.end());
  std::erase_if(cases, [](const FailureCase& each) {
    return each.name.starts_with("MembersDisagree") || each.name == "MemberMakesNoGroup" ||
           each.name == "TransferNeverComes";
  });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All,
                         NcclFailure,
                         testing::ValuesIn(native_failures()),
                         name_of<FailureCase>);

// What `runs` enqueues on the stream. All ranks make it, and none replays before the others' are
// ready.
class Recorded {
 public:
  Recorded(const OnStream& on, const std::function<void()>& runs)
      : stream_(on.stream), recordings_(on.recordings) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    runs();
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph));
    check(cudaGraphInstantiate(&exec_, graph, 0));
    check(cudaGraphDestroy(graph));
    recordings_.push_back(this);
    check(cudaGraphUpload(exec_, stream_));
    check(cudaStreamSynchronize(stream_));
    on.host.barrier();
  }

  ~Recorded() {
    std::erase(recordings_, this);
    drop();
  }

  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

  void replay() const { check(cudaGraphLaunch(exec_, stream_)); }

  void drop() {
    if (exec_ != nullptr) {
      cudaGraphExecDestroy(std::exchange(exec_, nullptr));
    }
  }

 private:
  cudaStream_t stream_;
  std::vector<Recorded*>& recordings_;
  cudaGraphExec_t exec_ = nullptr;
};

// Runs body on each of `ranks` ranks, each with a GPU of its own and groups on one stream; returns
// their errors.
std::vector<std::string> on_streams(int ranks,
                                    double deadline_seconds,
                                    const std::function<void(const OnStream&)>& body) {
  const WorldOptions options = {.deadline_seconds = deadline_seconds};
  return on_ranks(ranks, options, [&](World& host) {
    const auto rank = static_cast<int>(host.rank());
    check(cudaSetDevice(rank));
    std::vector<std::int64_t> everybody(static_cast<std::size_t>(ranks));
    std::iota(everybody.begin(), everybody.end(), 0);
    const auto meeting = host.group(everybody);
    const RankStream stream;
    std::vector<Recorded*> recordings;
    const auto drop = [&] {
      for (Recorded* const recording : recordings) {
        recording->drop();
      }
    };
    const auto world = join_under_test(host,
                                       {.device = rank,
                                        .world = options,
                                        .stream_of = [&](const Mover&) { return stream.get(); },
                                        .drop_recordings = drop});
    body({.rank = rank,
          .ranks = ranks,
          .world = *world,
          .stream = stream.get(),
          .recordings = recordings,
          .host = *meeting});
  });
}

// Each rank adds up all ranks' values often in a replay, and as often beside it: more than a queue
// lets wait. What is recorded and what is not are never under way together, as in runs.
void run_recorded(const OnStream& on) {
  constexpr int kSums = 20;
  std::vector<std::int64_t> members(static_cast<std::size_t>(on.ranks));
  std::iota(members.begin(), members.end(), 0);
  const auto group = on.world.group(members);
  std::vector<float> values(1000, static_cast<float>(on.rank + 1));
  const DeviceCopy in(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float));
  const DeviceCopy out(nullptr, values.size() * sizeof(float));
  const DeviceCopy last(nullptr, values.size() * sizeof(float));
  const auto elements = [](const DeviceCopy& memory) {
    return Elements{.dtype = DType::kF32, .data = memory.data(), .count = 1000};
  };
  const auto sum_often = [&] {
    for (int i = 1; i < kSums; ++i) {
      group->all_reduce(Fold::kSum, elements(in), elements(out));
    }
    group->all_reduce(Fold::kSum, elements(out), elements(last));
  };
  constexpr std::array<std::int64_t, 1> kGenerations = {0};
  const auto expect_sum = [&] {
    on.world.synchronize(kGenerations);
    last.to_host(reinterpret_cast<std::byte*>(values.data()));
    const int ones = on.ranks * (on.ranks + 1) / 2;  // what one sum of 1, 2, .. makes
    const auto sum = static_cast<float>(on.ranks * ones);
    TESSERA_CHECK(std::ranges::all_of(values, [&](float value) { return value == sum; }),
                  "{} instead of {}",
                  values[0],
                  sum);
  };
  sum_often();  // which connects them
  expect_sum();
  const Recorded recorded(on, sum_often);
  for (int step = 0; step < 3; ++step) {
    check(cudaMemset(last.data(), 0, values.size() * sizeof(float)));
    check(cudaStreamSynchronize(nullptr));
    recorded.replay();
    expect_sum();
    sum_often();
    sum_often();
    expect_sum();
    recorded.replay();
    recorded.replay();
    expect_sum();
  }
}

TEST(NcclWorld, RecordedOperationsAreReplayed) {
  std::string reason;
  const int ranks = std::min(count_devices(reason), 4);
  if (ranks == 0) {
    GTEST_SKIP() << reason;
  }
  EXPECT_THAT(on_streams(ranks, 60, run_recorded), Each(IsEmpty()));
}

// What becomes of it.
std::string late_sum() {
  return format("all_reduce of 400 bytes: no answer within {} s", short_deadline_seconds());
}

void wait_for_abort(World& world) {
  while (!world.abort_reason()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// The first rank's second replay waits for the other one, which leaves it out: what it holds is
// named.
TEST(NcclWorld, ARecordedOperationHasADeadline) {
  std::string reason;
  const int devices = count_devices(reason);
  if (devices < 2) {
    GTEST_SKIP() << (devices == 1 ? "one GPU, where NCCL allows one rank" : reason);
  }
  const auto errors = on_streams(2, short_deadline_seconds(), [](const OnStream& on) {
    const std::array<std::int64_t, 2> members = {0, 1};
    const auto group = on.world.group(members);
    const DeviceCopy memory(nullptr, 400);
    const Elements values = {.dtype = DType::kF32, .data = memory.data(), .count = 100};
    constexpr std::array<std::int64_t, 1> kGenerations = {0};
    group->barrier();
    group->all_reduce(Fold::kSum, values, values);  // which connects them
    on.world.synchronize(kGenerations);
    const Recorded first(on, [&] { group->barrier(); });
    const Recorded second(on, [&] { group->all_reduce(Fold::kSum, values, values); });
    first.replay();
    if (on.rank == 0) {
      second.replay();
      on.world.synchronize(kGenerations);
    } else {
      on.world.synchronize(kGenerations);
      wait_for_abort(on.world);
    }
  });
  EXPECT_THAT(errors[0], HasSubstr(late_sum()));
  EXPECT_THAT(errors[1], IsEmpty());
}

// Also where the host waits for something else that stands behind it.
TEST(NcclWorld, WhatIsWatchedHasADeadline) {
  std::string reason;
  const int devices = count_devices(reason);
  if (devices < 2) {
    GTEST_SKIP() << (devices == 1 ? "one GPU, where NCCL allows one rank" : reason);
  }
  const auto errors = on_streams(2, short_deadline_seconds(), [](const OnStream& on) {
    const std::array<std::int64_t, 2> members = {0, 1};
    const auto group = on.world.group(members);
    const DeviceCopy memory(nullptr, 400);
    const Elements values = {.dtype = DType::kF32, .data = memory.data(), .count = 100};
    group->all_reduce(Fold::kSum, values, values);
    int looks = 0;
    on.world.watch([&] { return ++looks == 3; });
    constexpr std::array<std::int64_t, 1> kGenerations = {0};
    on.world.synchronize(kGenerations);
    if (on.rank == 0) {
      group->all_reduce(Fold::kSum, values, values);
      on.world.watch([] { return false; });
    } else {
      wait_for_abort(on.world);
    }
  });
  EXPECT_THAT(errors[0], HasSubstr(late_sum()));
  EXPECT_THAT(errors[1], IsEmpty());
}

class NcclPatience : public testing::TestWithParam<PatienceCase> {};

TEST_P(NcclPatience, OutlastsTheDeadline) {
  std::string reason;
  const int ranks = std::min(count_devices(reason), 4);
  if (ranks < 2) {
    GTEST_SKIP() << (ranks == 1 ? "one GPU, where NCCL allows one rank" : reason);
  }
  const double deadline_seconds = short_deadline_seconds();
  EXPECT_THAT(
      on_gpus(
          ranks, deadline_seconds, [&](World& world) { GetParam().run(world, deadline_seconds); }),
      Each(IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(All,
                         NcclPatience,
                         testing::ValuesIn(patience_cases().begin(), patience_cases().end()),
                         name_of<PatienceCase>);

// Two channels of two ranks, and memory of as many transfers.
struct TwoChannels {
  TwoChannels(const OnStream& on, std::size_t num_bytes)
      : bytes(num_bytes),
        first(on.world.channel({.from = 0, .to = 1, .number = 0})),
        second(on.world.channel({.from = 0, .to = 1, .number = 1})),
        first_memory(nullptr, bytes),
        second_memory(nullptr, bytes) {
    check(cudaMemset(first_memory.data(), on.rank == 0 ? 3 : 0, bytes));
    check(cudaMemset(second_memory.data(), on.rank == 0 ? 4 : 0, bytes));
    check(cudaStreamSynchronize(nullptr));
  }

  void begin_first() const { first->begin({first_memory.data(), bytes}); }

  void begin_second() const { second->begin({second_memory.data(), bytes}); }

  std::size_t bytes;
  std::unique_ptr<Channel> first;
  std::unique_ptr<Channel> second;
  DeviceCopy first_memory;
  DeviceCopy second_memory;
};

void run_recorded_transfers(const OnStream& on) {
  constexpr std::array<std::int64_t, 1> kGenerations = {0};
  const TwoChannels channels(on, 400);
  on.world.synchronize(kGenerations);  // they are connected
  const Recorded recorded(on, [&] {
    channels.begin_first();
    channels.begin_second();
  });
  for (int step = 0; step < 3; ++step) {
    recorded.replay();
    on.world.synchronize(kGenerations);
    std::array<std::byte, 400> found = {};
    channels.first_memory.to_host(found.data());
    EXPECT_THAT(found, Each(std::byte{3}));
    channels.second_memory.to_host(found.data());
    EXPECT_THAT(found, Each(std::byte{4}));
    if (on.rank == 1) {
      check(cudaMemset(channels.first_memory.data(), 0, found.size()));
      check(cudaStreamSynchronize(nullptr));
    }
  }
}

TEST(NcclWorld, RecordedTransfersAreReplayed) {
  std::string reason;
  if (count_devices(reason) < 2) {
    GTEST_SKIP() << "fewer than two GPUs: " << reason;
  }
  EXPECT_THAT(on_streams(2, 60, run_recorded_transfers), Each(IsEmpty()));
}

// Transfers of one stream wait for each other: ranks that enqueue them in different orders hang,
// where NCCL has no room to keep what is sent.
TEST(NcclWorld, AnOrderOfTransfersThatHangsHasADeadline) {
  std::string reason;
  if (count_devices(reason) < 2) {
    GTEST_SKIP() << "fewer than two GPUs: " << reason;
  }
  const auto errors = on_streams(2, short_deadline_seconds(), [](const OnStream& on) {
    constexpr std::array<std::int64_t, 1> kGenerations = {0};
    const TwoChannels channels(on, std::size_t{64} << 20U);
    on.world.synchronize(kGenerations);
    channels.begin_first();  // as both do
    channels.begin_second();
    on.world.synchronize(kGenerations);
    if (on.rank == 0) {
      channels.begin_first();
      channels.begin_second();
    } else {
      channels.begin_second();
      channels.begin_first();
    }
    on.world.synchronize(kGenerations);
  });
  EXPECT_THAT(errors,
              Each(HasSubstr(
                  format("of 67108864 bytes: no answer within {} s", short_deadline_seconds()))));
}

// A rank's ends of the channels there and back between two, of one generation, which send and
// receive on streams of their own.
class BothWays {
 public:
  BothWays(NcclWorld& world,
           std::int64_t generation,
           const Mover& sends,
           const Mover& receives,
           std::size_t bytes)
      : bytes_(bytes), rank_(world.rank()), sent_(nullptr, bytes), received_(nullptr, bytes) {
    for (const std::int64_t from : {0, 1}) {
      (from == rank_ ? out_ : in_) = world.channel(
          {.from = from, .to = 1 - from}, generation, from == rank_ ? sends : receives);
    }
  }

  void begin(int value) {
    check(cudaMemset(sent_.data(), value + static_cast<int>(rank_), bytes_));
    check(cudaMemset(received_.data(), 0, bytes_));
    check(cudaStreamSynchronize(nullptr));
    in_->begin({received_.data(), bytes_});
    out_->begin({sent_.data(), bytes_});
  }

  void expect(int value) const {
    std::vector<std::byte> found(bytes_);
    received_.to_host(found.data());
    const auto sent = static_cast<std::byte>(value + 1 - static_cast<int>(rank_));
    EXPECT_EQ(std::ranges::count(found, sent), std::ssize(found)) << value;
  }

 private:
  std::size_t bytes_;
  std::int64_t rank_;
  DeviceCopy sent_;
  DeviceCopy received_;
  std::unique_ptr<Channel> in_;
  std::unique_ptr<Channel> out_;
};

// Both ranks begin to receive before they send: on one stream they would wait for ever.
TEST(NcclWorld, DirectionsHaveStreamsOfTheirOwn) {
  std::string reason;
  if (count_devices(reason) < 2) {
    GTEST_SKIP() << "fewer than two GPUs: " << reason;
  }
  const WorldOptions options = {.deadline_seconds = 60};
  const auto errors = on_ranks(2, options, [&](World& host) {
    const auto device = static_cast<int>(host.rank());
    check(cudaSetDevice(device));
    const RankStream out;
    const RankStream in;
    ThreadTeam team(1);
    const HostMover sends(team);
    const HostMover receives(team);
    const auto world = join_under_test(
        host, {.device = device, .world = options, .stream_of = [&](const Mover& mover) {
                 return &mover == &sends ? out.get() : in.get();
               }});
    constexpr std::size_t kBytes = std::size_t{16} << 20U;
    BothWays first(*world, 0, sends, receives, kBytes);
    BothWays second(*world, 1, sends, receives, 400);
    constexpr std::array<std::int64_t, 2> kGenerations = {0, 1};
    for (const int turn : {1, 2, 3}) {
      first.begin(10 * turn);
      second.begin(20 * turn);
      world->synchronize(kGenerations);
      first.expect(10 * turn);
      second.expect(20 * turn);
    }
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(NcclWorld, OneDeviceTakesOneRank) {
  std::string reason;
  if (count_devices(reason) == 0) {
    GTEST_SKIP() << reason;
  }
  LocalWorld hosts(2);
  std::array<std::string, 2> errors;
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<World> host = hosts.join(rank);
      const std::array<std::int64_t, 2> members = {0, 1};
      errors[static_cast<std::size_t>(rank)] = error_of(ErrorCode::kInvalidConfig, [&] {
        join_under_test(*host, {.device = 0})->group(members);
      });
    });
  }
  threads.clear();
  EXPECT_THAT(errors, Each(HasSubstr("ranks 0 and 1 are on one GPU")));
}

}  // namespace
}  // namespace tessera
