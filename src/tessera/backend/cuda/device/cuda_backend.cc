// The plugin: the backend on one CUDA device.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <cuda_runtime_api.h>

#include "tessera/backend/cuda/cudnn/cudnn_graphs.h"
#include "tessera/backend/cuda/device/check.h"
#include "tessera/backend/cuda/device/context.h"
#include "tessera/backend/cuda/device/cuda_plugin.h"
#include "tessera/backend/cuda/device/dispatch.h"
#include "tessera/backend/cuda/device/draw.h"
#include "tessera/backend/cuda/device/fault.h"
#include "tessera/backend/cuda/device/held_channel.h"
#include "tessera/backend/cuda/device/recorder.h"
#include "tessera/backend/cuda/device/staging.h"
#include "tessera/backend/cuda/device/streams.h"
#include "tessera/backend/cuda/kernels/op_workspace.h"
#include "tessera/backend/cuda/machine/find_devices.h"
#include "tessera/backend/cuda/machine/select_device.h"
#include "tessera/backend/cuda/products/lt_gemms.h"
#include "tessera/backend/device_backend.h"
#include "tessera/backend/view_types.h"
#include "tessera/base/error.h"
#include "tessera/base/mapping.h"
#include "tessera/base/units.h"
#include "tessera/ops/point_to_point/point_to_point.h"

namespace tessera::cuda {
namespace {

// Memory of the device, which is zeroed as the next of a stream.
class DeviceMemory {
 public:
  DeviceMemory(std::size_t bytes, cudaStream_t stream) {
    if (bytes == 0) {
      return;
    }
    check(cudaMalloc(&data_, bytes),
          format("cudaMalloc() of {}", format_bytes(static_cast<std::int64_t>(bytes))));
    try {
      check(cudaMemsetAsync(data_, 0, bytes, stream), "cudaMemsetAsync()");
    } catch (...) {
      cudaFree(data_);
      throw;
    }
  }

  ~DeviceMemory() { cudaFree(data_); }

  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

class CudaArena final : public Arena {
 public:
  CudaArena(std::int64_t bytes, cudaStream_t stream)
      : device_(static_cast<std::size_t>(bytes), stream),
        host_(static_cast<std::size_t>(bytes), "the host's side of the arena"),
        staging_(stream, Staging::buffer_bytes_for(static_cast<std::size_t>(bytes))) {
    // A checkpoint's states come here for the first time as fast as pages are faulted in.
    host_.prefer_huge_pages();
  }

  std::byte* data() override { return device_.data(); }

  std::byte* host() override { return host_.data(); }

  void to_device(std::int64_t offset, std::int64_t bytes) override {
    staging_.to_device(data() + offset, host() + offset, static_cast<std::size_t>(bytes));
  }

  void to_host(std::int64_t offset, std::int64_t bytes) override {
    staging_.to_host(host() + offset, data() + offset, static_cast<std::size_t>(bytes));
  }

 private:
  DeviceMemory device_;
  // Its pages take memory from their first touch, so that it costs what the host reads and writes.
  Mapping host_;
  Staging staging_;
};

// What lies in the host's memory for good, which kernels reach over the device's link.
class PinnedArena final : public HostArena {
 public:
  explicit PinnedArena(std::int64_t bytes)
      : memory_(allocate_pinned(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)))) {
    std::memset(memory_.get(), 0, static_cast<std::size_t>(bytes));
  }

  std::byte* data() override { return memory_.get(); }

 private:
  PinnedMemory memory_;
};

// Where kernels report what is wrong with their data, and the stream by which the host reads it.
class FaultReport {
 public:
  explicit FaultReport(cudaStream_t stream)
      : stream_(stream), memory_(sizeof(Fault), stream), staging_(stream, kBytes) {}

  Fault* on_device() const { return reinterpret_cast<Fault*>(memory_.data()); }

  // Once the stream is done. Errors: those of throw_fault(), of each fault once.
  void throw_any() {
    Fault found;
    staging_.to_host(reinterpret_cast<std::byte*>(&found), memory_.data(), sizeof found);
    if (found.kind != 0) {
      check(cudaMemsetAsync(memory_.data(), 0, sizeof found, stream_), "cudaMemsetAsync()");
      synchronize(stream_);
      throw_fault(found);
    }
  }

 private:
  static constexpr std::size_t kBytes = 256;  // that of a Fault, as staging takes it
  static_assert(sizeof(Fault) <= kBytes);

  cudaStream_t stream_;
  DeviceMemory memory_;
  Staging staging_;
};

// How far the rank is ahead of its device. A device takes about a thousand launches of a stream
// before it blocks who begins more. Behind a collective that hangs that would be for ever: so the
// rank is at most twice this many ops ahead.
class Lead {
 public:
  // One more op begins. `watch`: that of NativeCollectives.
  template <class Watch>
  void lengthen(cudaStream_t stream, const Watch& watch) {
    constexpr int kOps = 64;
    if (++num_begun_ < kOps) {
      return;
    }
    num_begun_ = 0;
    watch([&] { return marked_.is_done(); });
    marked_.mark(stream);
  }

 private:
  Event marked_;       // behind the ops that were last counted
  int num_begun_ = 0;  // since then
};

Traffic sent_by(const NativeCollectives& native) {
  return native.sent ? native.sent() : Traffic();
}

void add_sent(const NativeCollectives& native, const Traffic& traffic, std::int64_t times) {
  if (native.add_sent) {
    Traffic more;
    add(more, traffic, times);
    native.add_sent(more);
  }
}

constexpr StreamId kOwnStream = StreamId{0};   // of the program's order
constexpr StreamId kCommStream = StreamId{1};  // of collectives alone

// A stream of the device, before whose kernels others wait, and what they share.
struct UrgentStream {
  template <class MakeContext>
  explicit UrgentStream(const MakeContext& make_context)
      : stream(create_urgent_stream()), context(make_context(stream.get())) {}

  Stream stream;
  Context context;
};

class CudaBackend final : public DeviceBackend {
 public:
  CudaBackend(std::int64_t rank, std::int64_t num_ranks, const DeviceOptions& options)
      : ordinal_(select_device_of(rank, num_ranks, options.shared)),
        may_record_(options.may_record),
        own_stream_(create_stream()),
        fault_(own_stream_.get()),
        gemms_(make_lt_gemms(options)),
        graphs_(options.library_attention ? make_cudnn_graphs() : std::make_unique<NoGraphs>()),
        own_(make_context(own_stream_.get())) {
    context_of(kCommStream);
    cuda::synchronize(own_stream_.get());  // before others use what was zeroed
  }

  std::string_view name() const override { return "cuda"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override {
    auto arena = std::make_unique<CudaArena>(bytes, own_stream_.get());
    cuda::synchronize(own_stream_.get());  // as above
    return arena;
  }

  std::unique_ptr<Arena> allocate_host(std::int64_t bytes) override {
    return std::make_unique<PinnedArena>(bytes);
  }

  void draw(const Initial& initial, const View& out) override {
    draw_elements(own_, initial, out);
    cuda::synchronize(own_stream_.get());
  }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return op_workspace_bytes(op, operands, results);
  }

  // The other streams have collectives and transfers alone. Where these move memory by the host,
  // each is another thread's, and such an op returns when it is done. The first stream may be
  // recorded meanwhile, so that nothing but the event is asked of it.
  void run(const Op& op, const Views& views, StreamId stream) override {
    if (orders_streams()) {
      prepare(op, views);
      run_op(context_of(stream), op, views);
    } else if (stream == kOwnStream) {
      run_op(own_, op, views);
    } else {
      check(cudaSetDevice(ordinal_), "cudaSetDevice()");
      Context& context = context_of(stream);
      handed_over_.last().hold(context.stream());
      run_op(context, op, views);
      cuda::synchronize(context.stream());
    }
  }

  bool orders_streams() const override { return native_.wait != nullptr; }

  World* world() override { return world_; }

  // Of the host's, which one thread moves for all streams.
  Channel* channel(const Op& op) override {
    Channel* const channel = transfers_ ? channel_of(op, transfers_->context) : nullptr;
    if (channel == nullptr) {
      return nullptr;
    }
    return &held_channels_.try_emplace(channel, *channel, handed_over_, ordinal_).first->second;
  }

  void make_channels(std::span<const PlacedTransfer> transfers) override {
    if (!orders_streams() && !transfers.empty() && !transfers_) {
      transfers_.emplace([this](cudaStream_t made) { return make_context(made); });
      give_channels(transfers_->context);
    }
    if (orders_streams()) {
      for (const PlacedTransfer& transfer : transfers) {
        channel_of(*transfer.op, context_of(transfer.stream));
      }
    }
  }

  void hand_over() override { handed_over_.mark(own_stream_.get()); }

  void signal(std::size_t number, StreamId stream) override {
    signals_.mark(number, context_of(stream).stream());
  }

  void wait(std::size_t number, StreamId stream) override {
    signals_.hold(number, context_of(stream).stream());
  }

  bool records(const Op& op, std::span<const TensorType> operands) const override {
    return may_record_ && (orders_streams() || !waits_for_ranks(op, operands));
  }

  // A recording knows no event from before it, nor does what follows know those of a recording.
  std::unique_ptr<Recording> record(const std::function<void()>& runs) override {
    const Traffic before = sent_by(native_);
    signals_.forget();
    const CapturedGraph graph(recorder_.capture(own_stream_.get(), [&] {
      runs();
      for (const auto& [number, other] : others_) {
        if (is_capturing(other.stream.get())) {
          join(other.stream);
        }
      }
    }));
    signals_.forget();
    Traffic sent_by_it = sent_by(native_);
    add(sent_by_it, before, -1);
    add_sent(native_, sent_by_it, -1);  // each replay counts it
    auto recording = recorder_.make(
        graph, [this, sent_by_it](cudaGraphExec_t exec) { replay(exec, sent_by_it); });
    if (recorder_.has_collectives() && native_.meet) {
      recording->make_ready(own_stream_.get());
      native_.meet();
    }
    return recording;
  }

  // Collectives first, whose wait has a deadline.
  void synchronize() override {
    signals_.forget();
    if (orders_streams()) {
      native_.wait();
    }
    for (const auto& [number, other] : others_) {
      cuda::synchronize(other.stream.get());
    }
    cuda::synchronize(own_stream_.get());
    fault_.throw_any();
    gemms_->keep_choices();
  }

  // The host waits for other ranks, in collectives.
  void abort(std::string_view reason) override {
    if (abort_) {
      abort_(reason);
    }
  }

  const Mover& mover(StreamId stream) const override { return known_context(stream).mover(); }

  void set_communicators(StreamId stream, CommunicatorOf communicator_of) override {
    context_of(stream).set_communicators(std::move(communicator_of));
  }

  void set_channels(World& world, ChannelsOf channels_of) override {
    world_ = &world;
    channels_of_ = std::move(channels_of);
    give_channels(own_);
    for (auto& [number, other] : others_) {
      give_channels(other.context);
    }
  }

  CUstream_st* native_stream(StreamId stream) const override {
    return known_context(stream).stream();
  }

  CUstream_st* native_stream(const Mover& mover) const override {
    const std::scoped_lock lock(mutex_);
    const auto found = std::ranges::find_if(
        others_, [&](const auto& other) { return &other.second.context.mover() == &mover; });
    TESSERA_CHECK(found != others_.end() || &mover == &own_.mover(), "the mover of no stream");
    return found != others_.end() ? found->second.context.stream() : own_.stream();
  }

  int ordinal() const override { return ordinal_; }

  void set_native(NativeCollectives native) override { native_ = std::move(native); }

  void drop_recordings() override { recorder_.drop(); }

  bool shares_product_choices() const override { return gemms_->shares_choices(); }

  std::string product_choices(ProductChoices which) const override {
    return gemms_->choices(which);
  }

  void take_product_choices(ProductChoices which, std::span<const std::string> of_ranks) override {
    gemms_->take_choices(which, of_ranks);
  }

  void set_abort(std::function<void(std::string_view reason)> abort) override {
    abort_ = std::move(abort);
  }

 private:
  Context make_context(cudaStream_t stream) {
    return {stream, fault_.on_device(), *gemms_, *graphs_, multiprocessors_of(ordinal_)};
  }

  void give_channels(Context& context) const {
    if (channels_of_) {
      context.set_channels(channels_of_(context.mover()));
    }
  }

  // Makes a stream where there is none yet, on the calling thread's device.
  Context& context_of(StreamId stream) {
    if (stream == kOwnStream) {
      return own_;
    }
    const std::scoped_lock lock(mutex_);
    const auto made = [this](cudaStream_t of) { return make_context(of); };
    const auto [found, is_new] = others_.try_emplace(stream, made);
    Context& context = found->second.context;
    if (is_new) {
      give_channels(context);
    }
    return context;
  }

  const Context& known_context(StreamId stream) const {
    const std::scoped_lock lock(mutex_);
    return stream == kOwnStream ? own_ : others_.at(stream).context;
  }

  // By the thread that has all streams.
  void prepare(const Op& op, const Views& views) {
    if (recorder_.is_recording()) {
      if (!recorder_.has_collectives() && waits_for_ranks(op, types_of(views.in))) {
        recorder_.note_collective();
      }
    } else if (native_.watch) {
      lead_.lengthen(own_stream_.get(), native_.watch);
    }
  }

  // What the first stream is given from now on begins when `other` is done with what it was given.
  void join(const Stream& other) {
    joined_.mark(other.get());
    joined_.hold(own_stream_.get());
  }

  void replay(cudaGraphExec_t exec, const Traffic& sent_by_it) {
    if (orders_streams()) {
      for (const auto& [number, other] : others_) {
        join(other.stream);
      }
    }
    check(cudaGraphLaunch(exec, own_stream_.get()), "cudaGraphLaunch()");
    signals_.forget();
    add_sent(native_, sent_by_it, 1);
  }

  int ordinal_;
  bool may_record_;
  Stream own_stream_;
  FaultReport fault_;
  std::unique_ptr<Gemms> gemms_;
  std::unique_ptr<Graphs> graphs_;
  Context own_;
  World* world_ = nullptr;
  ChannelsOf channels_of_;
  // Streams' threads make theirs at one time. What goes through all of them comes before or after.
  mutable std::mutex mutex_;
  std::map<StreamId, UrgentStream> others_;  // than the first
  std::optional<UrgentStream> transfers_;    // of all streams, where the host moves memory
  std::map<Channel*, HeldChannel> held_channels_;
  HandOvers handed_over_;
  Event joined_;
  Lead lead_;
  Recorder recorder_;
  Signals signals_;
  NativeCollectives native_;
  std::function<void(std::string_view)> abort_;
};

DeviceBackend* open_backend(std::int64_t rank,
                            std::int64_t num_ranks,
                            const DeviceOptions& options) {
  return std::make_unique<CudaBackend>(rank, num_ranks, options).release();
}

}  // namespace
}  // namespace tessera::cuda

extern "C" const tessera::CudaPlugin* tessera_cuda_plugin() {
  static constexpr tessera::CudaPlugin kPlugin = {.abi = tessera::kCudaPluginAbi,
                                                  .version = TESSERA_VERSION,
                                                  .find = tessera::cuda::find_devices,
                                                  .open = tessera::cuda::open_backend};
  return &kPlugin;
}
