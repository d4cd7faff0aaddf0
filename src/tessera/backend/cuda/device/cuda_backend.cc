// The plugin: the backend on one CUDA device.

#include <cstddef>
#include <functional>
#include <memory>
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

// That of the program's order, and that of collectives alone.
struct Streams {
  Stream own = Stream(create_stream());
  Stream comm = Stream(create_urgent_stream());
};

struct Contexts {
  Context own;
  Context comm;

  const Context& of(StreamId stream) const { return stream == StreamId{0} ? own : comm; }

  Context& of(StreamId stream) { return stream == StreamId{0} ? own : comm; }
};

class CudaBackend final : public DeviceBackend {
 public:
  CudaBackend(std::int64_t rank, std::int64_t num_ranks, const DeviceOptions& options)
      : ordinal_(select_device_of(rank, num_ranks, options.shared)),
        may_record_(options.may_record),
        fault_(streams_.own.get()),
        gemms_(make_lt_gemms(options)),
        graphs_(options.library_attention ? make_cudnn_graphs() : std::make_unique<NoGraphs>()),
        contexts_{.own = make_context(streams_.own), .comm = make_context(streams_.comm)} {
    cuda::synchronize(streams_.own.get());  // before the other one uses what was zeroed
  }

  std::string_view name() const override { return "cuda"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override {
    auto arena = std::make_unique<CudaArena>(bytes, streams_.own.get());
    cuda::synchronize(streams_.own.get());  // as above
    return arena;
  }

  void draw(const Initial& initial, const View& out) override {
    draw_elements(contexts_.own, initial, out);
    cuda::synchronize(streams_.own.get());
  }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return op_workspace_bytes(op, operands, results);
  }

  // The second stream has collectives alone. Where these move memory by the host, it is another
  // thread's, and such an op returns when it is done. The first stream may be recorded meanwhile,
  // so that nothing but the event is asked of it.
  void run(const Op& op, const Views& views, StreamId stream) override {
    if (orders_streams()) {
      prepare(op, views);
    }
    if (stream == StreamId{0}) {
      run_op(contexts_.own, op, views);
    } else if (orders_streams()) {
      run_op(contexts_.comm, op, views);
    } else {
      check(cudaSetDevice(ordinal_), "cudaSetDevice()");
      handed_over_.hold(streams_.comm.get());
      run_op(contexts_.comm, op, views);
      cuda::synchronize(streams_.comm.get());
    }
  }

  bool orders_streams() const override { return native_.wait != nullptr; }

  void hand_over() override { handed_over_.mark(streams_.own.get()); }

  void signal(std::size_t number, StreamId stream) override {
    signals_.mark(number, native_stream(stream));
  }

  void wait(std::size_t number, StreamId stream) override {
    signals_.hold(number, native_stream(stream));
  }

  bool records(const Op& op, std::span<const TensorType> operands) const override {
    return may_record_ && (orders_streams() || !waits_for_ranks(op, operands));
  }

  // A recording knows no event from before it, nor does what follows know those of a recording.
  std::unique_ptr<Recording> record(const std::function<void()>& runs) override {
    const Traffic before = sent_by(native_);
    signals_.forget();
    const CapturedGraph graph(recorder_.capture(streams_.own.get(), [&] {
      runs();
      if (is_capturing(streams_.comm.get())) {
        join(streams_.comm, streams_.own);
      }
    }));
    signals_.forget();
    Traffic sent_by_it = sent_by(native_);
    add(sent_by_it, before, -1);
    add_sent(native_, sent_by_it, -1);  // each replay counts it
    auto recording = recorder_.make(
        graph, [this, sent_by_it](cudaGraphExec_t exec) { replay(exec, sent_by_it); });
    if (recorder_.has_collectives() && native_.meet) {
      recording->make_ready(streams_.own.get());
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
    cuda::synchronize(streams_.comm.get());
    cuda::synchronize(streams_.own.get());
    fault_.throw_any();
    gemms_->keep_choices();
  }

  // The host waits for other ranks, in collectives.
  void abort(std::string_view reason) override {
    if (abort_) {
      abort_(reason);
    }
  }

  const Mover& mover(StreamId stream) const override { return contexts_.of(stream).mover(); }

  void set_communicators(StreamId stream, CommunicatorOf communicator_of) override {
    contexts_.of(stream).set_communicators(std::move(communicator_of));
  }

  CUstream_st* native_stream(StreamId stream) const override {
    return contexts_.of(stream).stream();
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
  Context make_context(const Stream& stream) {
    return {stream.get(), fault_.on_device(), *gemms_, *graphs_, multiprocessors_of(ordinal_)};
  }

  // By the thread that has both streams.
  void prepare(const Op& op, const Views& views) {
    if (recorder_.is_recording()) {
      if (!recorder_.has_collectives() && waits_for_ranks(op, types_of(views.in))) {
        recorder_.note_collective();
      }
    } else if (native_.watch) {
      lead_.lengthen(streams_.own.get(), native_.watch);
    }
  }

  // What `then` is given from now on begins when `first` is done with what it was given.
  void join(const Stream& first, const Stream& then) {
    joined_.mark(first.get());
    joined_.hold(then.get());
  }

  void replay(cudaGraphExec_t exec, const Traffic& sent_by_it) {
    if (orders_streams()) {
      join(streams_.comm, streams_.own);
    }
    check(cudaGraphLaunch(exec, streams_.own.get()), "cudaGraphLaunch()");
    signals_.forget();
    add_sent(native_, sent_by_it, 1);
  }

  int ordinal_;
  bool may_record_;
  Streams streams_;
  FaultReport fault_;
  std::unique_ptr<Gemms> gemms_;
  std::unique_ptr<Graphs> graphs_;
  Contexts contexts_;
  Event handed_over_;
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
