// What the backend asks of CUDA for a run's streams, events and recordings, over what stands for
// its runtime and holds captures to CUDA's rules. Kernels are work of the host on those streams.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cuda/cudnn/cudnn_graphs.h"
#include "tessera/backend/cuda/device/check.h"
#include "tessera/backend/cuda/device/cuda_plugin.h"
#include "tessera/backend/cuda/device/dispatch.h"
#include "tessera/backend/cuda/device/draw.h"
#include "tessera/backend/cuda/machine/find_devices.h"
#include "tessera/backend/cuda/products/lt_gemms.h"
#include "tessera/backend/cuda/stand_in/stand_in_machine.h"
#include "tessera/backend/cuda/stand_in/stand_in_runtime.h"
#include "tessera/backend/device_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/comm/channel.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/comm/mover.h"
#include "tessera/ops/all_ops.h"

extern "C" const tessera::CudaPlugin* tessera_cuda_plugin();

namespace tessera::cuda {

// In the place of kernels: an op notes its number in the journal.
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What was done, in order.
class Journal {
 public:
  void add(int number) {
    const std::scoped_lock lock(mutex_);
    done_.push_back(number);
  }

  std::vector<int> take() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(done_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<int> done_;
};

Journal& journal() {
  static Journal all;
  return all;
}

// Products as the backend has them: it keeps choices between steps.
class CountedGemms final : public Gemms {
 public:
  void run(CUstream_st* /*stream*/,
           const Gemm& /*gemm*/,
           const GemmOperands& /*operands*/,
           std::span<std::byte> /*workspace*/) override {}

  void run_batch(CUstream_st* /*stream*/,
                 const Gemm& /*gemm*/,
                 const GemmBatch& /*batch*/,
                 const GemmOperands& /*first*/,
                 std::span<std::byte> /*workspace*/) override {}

  void run_float8(CUstream_st* /*stream*/,
                  const Float8Gemm& /*gemm*/,
                  const Float8Operands& /*operands*/,
                  std::span<std::byte> /*workspace*/) override {}

  void keep_choices() override { ++num_kept; }

  bool shares_choices() const override { return true; }

  std::string choices(ProductChoices which) const override {
    return which == ProductChoices::kKnown ? "known" : "timed" + heard_;
  }

  void take_choices(ProductChoices which, std::span<const std::string> of_ranks) override {
    heard_ += which == ProductChoices::kKnown ? " " + of_ranks[0] : "";
  }

  inline static std::atomic<int> num_kept = 0;

 private:
  std::string heard_;
};

constexpr int kFails = -1;      // the op's launch
constexpr int kForbidden = -2;  // it asks what may not be asked while a graph is recorded

}  // namespace

std::unique_ptr<Gemms> make_lt_gemms(const DeviceOptions& /*options*/) {
  return std::make_unique<CountedGemms>();
}

std::unique_ptr<Graphs> make_cudnn_graphs() {
  return std::make_unique<NoGraphs>();
}

std::unique_ptr<Mover> make_device_mover(const Context& /*context*/) {
  static ThreadTeam caller(1);
  return std::make_unique<HostMover>(caller);
}

void draw_elements(const Context& context, const Initial& initial, const View& out) {
  context.stream()->give([to = out.as<float>(), value = initial.constant] { *to = value; });
}

bool waits_for_ranks(const Op& op, std::span<const TensorType> /*operands*/) {
  return op.get_if<AllReduceAttrs>() != nullptr;
}

// The number is the stride of its result.
void run_op(Context& context, const Op& /*op*/, const Views& views) {
  const auto number = static_cast<int>(views.out[0].strides[0]);
  if (number == kFails) {
    fail(ErrorCode::kDeviceError, "no kernel");
  }
  if (number == kForbidden) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, 1), "cudaMalloc()");
  }
  context.stream()->give([number] {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    journal().add(number);
  });
}

void find_devices(Devices& /*devices*/) {}

std::int64_t num_usable_devices() {
  return static_cast<std::int64_t>(stand_in_machine().devices.size());
}

// As where it has to look at all of them.
int ordinal_of(std::int64_t number) {
  check(cudaSetDevice(static_cast<int>(num_usable_devices()) - 1), "cudaSetDevice()");
  return static_cast<int>(number);
}

namespace {

constexpr StreamId kOwn{0};
constexpr StreamId kOther{1};

class CudaBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    stand_in_machine() = {};
    journal().take();
  }

  void TearDown() override { stand_in_machine() = {}; }

  static std::unique_ptr<DeviceBackend> open(const DeviceOptions& options = {},
                                             std::int64_t rank = 0,
                                             std::int64_t num_ranks = 1) {
    return std::unique_ptr<DeviceBackend>(tessera_cuda_plugin()->open(rank, num_ranks, options));
  }

  // As of a run whose collectives only enqueue.
  static std::unique_ptr<DeviceBackend> open_native(NativeCollectives native = {}) {
    auto backend = open();
    if (!native.wait) {
      native.wait = [] {};
    }
    backend->set_native(std::move(native));
    return backend;
  }

  static void run(Backend& backend, int number, StreamId stream = kOwn) {
    static const OpRef kAdd = make_op(AddAttrs{});
    give(backend, *kAdd, number, stream);
  }

  static void sum(Backend& backend, int number, StreamId stream) {
    static const OpRef kCollective = make_op(AllReduceAttrs{.axes = {{.name = "data", .size = 2}}});
    give(backend, *kCollective, number, stream);
  }

 private:
  static void give(Backend& backend, const Op& op, int number, StreamId stream) {
    View view = {.dtype = DType::kF32, .num_dims = 1};
    view.strides[0] = number;
    backend.run(op, {.in = {}, .out = {&view, 1}, .workspace = {}}, stream);
  }
};

TEST_F(CudaBackendTest, SynchronizeEndsWhatRunBegan) {
  const auto backend = open();
  for (int number = 1; number <= 3; ++number) {
    run(*backend, number);
  }
  CountedGemms::num_kept = 0;
  backend->synchronize();
  EXPECT_THAT(journal().take(), ElementsAre(1, 2, 3));
  EXPECT_EQ(CountedGemms::num_kept, 1);
}

TEST_F(CudaBackendTest, PassesOnChoicesOfProducts) {
  const auto backend = open();
  ASSERT_TRUE(backend->shares_product_choices());
  const std::string of_ranks[] = {backend->product_choices(ProductChoices::kKnown), ""};
  backend->take_product_choices(ProductChoices::kKnown, of_ranks);
  EXPECT_EQ(backend->product_choices(ProductChoices::kTimed), "timed known");
}

TEST_F(CudaBackendTest, AnArenaIsZeroedAndCopiedBothWays) {
  const auto backend = open();
  const auto arena = backend->allocate(1000);
  EXPECT_NE(arena->host(), arena->data());
  arena->to_host(0, 1000);
  EXPECT_EQ(arena->host()[999], std::byte{0});
  arena->host()[7] = std::byte{42};
  arena->to_device(7, 1);
  backend->synchronize();
  EXPECT_EQ(arena->data()[7], std::byte{42});
  backend->draw({.constant = 2.5F},
                {.data = arena->data() + 8, .dtype = DType::kF32, .num_dims = 0});
  arena->to_host(8, 4);
  EXPECT_EQ(*reinterpret_cast<const float*>(arena->host() + 8), 2.5F);
}

TEST_F(CudaBackendTest, AReplayDoesWhatWasRecorded) {
  const auto backend = open();
  run(*backend, 9);
  const auto recording = backend->record([&] {
    run(*backend, 1);
    run(*backend, 2);
  });
  backend->synchronize();
  EXPECT_THAT(journal().take(), ElementsAre(9)) << "what is recorded does not run";
  run(*backend, 3);
  recording->replay();
  run(*backend, 4);
  recording->replay();
  backend->synchronize();
  EXPECT_THAT(journal().take(), ElementsAre(3, 1, 2, 4, 1, 2));
}

// Events between streams, also within a recording, and at its end.
TEST_F(CudaBackendTest, StreamsWaitForEachOther) {
  const auto backend = open_native();
  const auto step = [&] {
    run(*backend, 1);
    backend->signal(0, kOwn);
    backend->wait(0, kOther);
    sum(*backend, 2, kOther);
    backend->signal(1, kOther);
    backend->wait(1, kOwn);
    run(*backend, 3);
    backend->signal(2, kOwn);
    backend->wait(2, kOther);
    sum(*backend, 4, kOther);  // for which nothing waits
  };
  step();
  backend->synchronize();
  EXPECT_THAT(journal().take(), ElementsAre(1, 2, 3, 4));
  const auto recording = backend->record(step);
  for (int replay = 0; replay < 3; ++replay) {
    recording->replay();
    run(*backend, 5);
    backend->synchronize();
    EXPECT_THAT(journal().take(), ElementsAre(1, 2, 3, 4, 5));
  }
}

// Streams of transfers, which are made as they are needed, and wait for each other.
TEST_F(CudaBackendTest, AnyNumberOfStreamsWaitForEachOther) {
  const auto backend = open_native();
  constexpr StreamId kSends{2};
  constexpr StreamId kReceives{4};
  const auto step = [&] {
    run(*backend, 1);
    backend->signal(0, kOwn);
    backend->wait(0, kSends);
    sum(*backend, 2, kSends);
    backend->signal(1, kSends);
    backend->wait(1, kReceives);
    sum(*backend, 3, kReceives);
    backend->signal(2, kReceives);
    backend->wait(2, kOwn);
    run(*backend, 4);
    backend->signal(3, kOwn);
    backend->wait(3, kReceives);
    sum(*backend, 5, kReceives);  // for which nothing waits
  };
  step();
  backend->synchronize();
  EXPECT_THAT(journal().take(), ElementsAre(1, 2, 3, 4, 5));
  const auto recording = backend->record(step);
  for (int replay = 0; replay < 3; ++replay) {
    sum(*backend, 6, kSends);
    recording->replay();
    run(*backend, 7);
    backend->synchronize();
    EXPECT_THAT(journal().take(), ElementsAre(6, 1, 2, 3, 4, 5, 7));
  }
}

// Of the host: notes when it begins a transfer, and then is done.
class NotedChannel final : public Channel {
 public:
  static constexpr int kBegun = 100;

  void begin(std::span<std::byte> /*memory*/) override { journal().add(kBegun); }

  bool advance() override { return true; }

  void withdraw() override {}
};

// By another thread, which does not wait for the device.
TEST_F(CudaBackendTest, ATransferBeginsBehindWhatWasHandedOver) {
  LocalWorld run_of_one(1);
  const auto world = run_of_one.join(0);
  NotedChannel noted;
  const auto backend = open();
  backend->set_channels(*world, [&](const Mover& /*mover*/) -> ChannelOf {
    return [&](const AxisSizes&, const ChannelPlaces&, TrafficClass) -> Channel& { return noted; };
  });
  EXPECT_EQ(backend->world(), world.get());
  const OpRef send = make_op(SendAttrs{.axes = {{.name = "pipeline", .size = 2}}, .to = 1});
  const std::array<PlacedTransfer, 1> transfers = {{{.op = send.get(), .stream = StreamId{2}}}};
  backend->make_channels(transfers);
  Channel* const channel = backend->channel(*send);
  ASSERT_NE(channel, nullptr);
  EXPECT_EQ(backend->channel(*send), channel);
  EXPECT_EQ(backend->channel(*make_op(AddAttrs{})), nullptr);
  for (int step = 0; step < 3; ++step) {
    run(*backend, 1);
    run(*backend, 2);
    backend->hand_over();
    std::jthread([&] {
      channel->begin({});
      while (!channel->advance()) {
        std::this_thread::sleep_until(channel->due().value());
      }
    }).join();
    EXPECT_THAT(journal().take(), ElementsAre(1, 2, NotedChannel::kBegun));
    EXPECT_EQ(channel->due(), std::nullopt);
  }
}

// Where a library's transfers only begin, they have a stream each, and the host moves nothing.
TEST_F(CudaBackendTest, ALibrarysChannelsAreOfTheirStreams) {
  LocalWorld run_of_one(1);
  const auto world = run_of_one.join(0);
  NotedChannel noted;
  std::vector<const Mover*> movers;
  const auto backend = open_native();
  backend->set_channels(*world, [&](const Mover& mover) -> ChannelOf {
    return [&](const AxisSizes&, const ChannelPlaces&, TrafficClass) -> Channel& {
      movers.push_back(&mover);
      return noted;
    };
  });
  const OpRef send = make_op(SendAttrs{.axes = {{.name = "pipeline", .size = 2}}, .to = 1});
  const std::array<PlacedTransfer, 2> transfers = {
      {{.op = send.get(), .stream = StreamId{2}}, {.op = send.get(), .stream = StreamId{5}}}};
  backend->make_channels(transfers);
  ASSERT_EQ(movers.size(), 2U);
  CUstream_st* const first = backend->native_stream(*movers[0]);
  EXPECT_NE(first, backend->native_stream(*movers[1]));
  EXPECT_EQ(first, backend->native_stream(StreamId{2}));
  EXPECT_EQ(backend->native_stream(backend->mover(kOther)), backend->native_stream(kOther));
  EXPECT_EQ(backend->channel(*send), nullptr);
}

// An event of before is none of the recording's, nor one of the recording's of what follows.
TEST_F(CudaBackendTest, NumbersAreForgottenWhereARecordingBeginsAndEnds) {
  const auto backend = open_native();
  run(*backend, 1);
  backend->signal(0, kOwn);
  const auto recording = backend->record([&] {
    backend->wait(0, kOwn);
    run(*backend, 2);
    backend->signal(1, kOwn);
  });
  backend->wait(1, kOther);
  sum(*backend, 3, kOther);
  recording->replay();  // behind what the other stream was given
  backend->wait(1, kOther);
  backend->synchronize();
  EXPECT_THAT(journal().take(), testing::UnorderedElementsAre(1, 2, 3));
}

TEST_F(CudaBackendTest, AFailureWhileRecordingEndsIt) {
  const auto backend = open();
  EXPECT_THAT(error_of(ErrorCode::kDeviceError,
                       [&] {
                         backend->record([&] {
                           run(*backend, 1);
                           run(*backend, kFails);
                         });
                       }),
              HasSubstr("no kernel"));
  run(*backend, 2);
  backend->synchronize();
  EXPECT_THAT(journal().take(), ElementsAre(2));
  backend->record([&] { run(*backend, 3); })->replay();
  backend->synchronize();
  EXPECT_THAT(journal().take(), ElementsAre(3));
}

// CUDA breaks off a capture in which its thread asks for memory.
TEST_F(CudaBackendTest, WhatMayNotBeRecordedSaysHowToDoWithout) {
  const auto backend = open();
  EXPECT_THAT(error_of(ErrorCode::kDeviceError,
                       [&] { backend->record([&] { run(*backend, kForbidden); }); }),
              HasSubstr("cudaMalloc()"));
  EXPECT_THAT(error_of(ErrorCode::kDeviceError,
                       [&] {
                         backend->record([&] {
                           try {
                             run(*backend, kForbidden);
                           } catch (const Error&) {
                             return;
                           }
                         });
                       }),
              HasSubstr("run.cuda_graphs = false runs without"));
  run(*backend, 1);
  backend->synchronize();
  EXPECT_THAT(journal().take(), ElementsAre(1));
}

// Whose collectives move memory by the host: their thread goes on while this one records.
TEST_F(CudaBackendTest, AnotherThreadsStreamIsNotRecorded) {
  const auto backend = open();
  run(*backend, 1);
  backend->hand_over();
  const auto recording = backend->record([&] {
    run(*backend, 2);
    std::jthread([&] { sum(*backend, 3, kOther); }).join();
    run(*backend, 4);
  });
  EXPECT_THAT(journal().take(), ElementsAre(1, 3)) << "behind what was handed over, and done";
  recording->replay();
  backend->synchronize();
  EXPECT_THAT(journal().take(), ElementsAre(2, 4));
}

TEST_F(CudaBackendTest, RecordsWhatNoRankIsWaitedFor) {
  const OpRef add = make_op(AddAttrs{});
  const OpRef collective = make_op(AllReduceAttrs{.axes = {{.name = "data", .size = 2}}});
  EXPECT_TRUE(open()->records(*add, {}));
  EXPECT_FALSE(open()->records(*collective, {}));
  EXPECT_TRUE(open_native()->records(*collective, {}));
  EXPECT_FALSE(open({.may_record = false})->records(*add, {}));
}

// No rank replays before the others' graphs are ready; without collectives nobody waits.
TEST_F(CudaBackendTest, RanksMeetBehindARecordingOfCollectives) {
  int met = 0;
  const auto backend = open_native({.meet = [&] { ++met; }});
  backend->record([&] { run(*backend, 1); });
  EXPECT_EQ(met, 0);
  const auto recording = backend->record([&] { sum(*backend, 2, kOwn); });
  EXPECT_EQ(met, 1);
  recording->replay();
  backend->synchronize();
  EXPECT_EQ(met, 1);
}

// Communicators see a recording's collectives once; what was sent counts each replay.
TEST_F(CudaBackendTest, TrafficCountsReplays) {
  Traffic sent;
  const auto backend = open_native(
      {.sent = [&] { return sent; }, .add_sent = [&](const Traffic& more) { add(sent, more); }});
  const Traffic of_step = {{"data", {100, 20, 3}}};
  const auto recording = backend->record([&] {
    sum(*backend, 1, kOwn);
    add(sent, of_step);
  });
  EXPECT_THAT(sent["data"], ElementsAre(0, 0, 0));
  recording->replay();
  recording->replay();
  EXPECT_THAT(sent["data"], ElementsAre(200, 40, 6));
  backend->synchronize();
}

TEST_F(CudaBackendTest, ADroppedRecordingIsNotReplayed) {
  const auto backend = open_native();
  const auto recording = backend->record([&] { run(*backend, 1); });
  backend->drop_recordings();
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { recording->replay(); }),
              HasSubstr("a replay of what was dropped"));
}

// Where collectives only enqueue, a device must not be given so much that the host blocks.
TEST_F(CudaBackendTest, IsWatchedWhileItIsFarAhead) {
  int watched = 0;
  const auto backend = open_native({.watch = [&](const std::function<bool()>& is_done) {
    ++watched;
    while (!is_done()) {
      std::this_thread::yield();
    }
  }});
  for (int number = 0; number < 300; ++number) {
    run(*backend, number);
  }
  EXPECT_EQ(watched, 300 / 64);
  backend->synchronize();
  EXPECT_EQ(journal().take().size(), 300U);
}

TEST_F(CudaBackendTest, AWatchThatThrowsEndsTheStep) {
  const auto backend = open_native({.watch = [](const std::function<bool()>& /*is_done*/) {
    fail(ErrorCode::kTimeout, "no answer");
  }});
  EXPECT_THAT(error_of(ErrorCode::kTimeout,
                       [&] {
                         for (int number = 0; number < 300; ++number) {
                           run(*backend, number);
                         }
                       }),
              HasSubstr("no answer"));
}

TEST_F(CudaBackendTest, SynchronizeWaitsForCollectivesFirst) {
  const auto backend =
      open_native({.wait = [] { fail(ErrorCode::kTimeout, "a collective hangs"); }});
  EXPECT_THAT(error_of(ErrorCode::kTimeout, [&] { backend->synchronize(); }),
              HasSubstr("a collective hangs"));
}

TEST_F(CudaBackendTest, AbortTellsTheWorld) {
  const auto backend = open();
  backend->abort("nobody hears it");
  std::string heard;
  backend->set_abort([&](std::string_view reason) { heard = reason; });
  backend->abort("it failed");
  EXPECT_EQ(heard, "it failed");
}

TEST_F(CudaBackendTest, RanksTakeDevicesInTurn) {
  stand_in_machine().devices.resize(3);
  for (std::int64_t rank = 0; rank < 5; ++rank) {
    const auto backend = open({}, rank, 5);
    EXPECT_EQ(backend->ordinal(), rank % 3);
    EXPECT_EQ(backend->native_stream(kOwn)->device, rank % 3);
  }
}

// Threads of one process use each other's memory.
TEST_F(CudaBackendTest, DevicesThatDoNotReachEachOtherAreNamed) {
  stand_in_machine().devices.resize(2);
  stand_in_machine().devices[1].reaches_others = false;
  EXPECT_THAT(error_of(ErrorCode::kUnsupported, [] { open({}, 0, 2); }),
              HasSubstr("GPU 0 cannot use the memory of GPU 1"));
  EXPECT_EQ(open({.shared = Shared::kNothing}, 1, 2)->ordinal(), 1);
  EXPECT_EQ(open({}, 0, 1)->ordinal(), 0);
}

}  // namespace
}  // namespace tessera::cuda
