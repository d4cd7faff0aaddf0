// The plugin: the backend on one CUDA device.

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "tessera/backend/cuda/cudnn/cudnn_graphs.h"
#include "tessera/backend/cuda/device/check.h"
#include "tessera/backend/cuda/device/context.h"
#include "tessera/backend/cuda/device/cuda_plugin.h"
#include "tessera/backend/cuda/device/dispatch.h"
#include "tessera/backend/cuda/device/draw.h"
#include "tessera/backend/cuda/device/fault.h"
#include "tessera/backend/cuda/device/find_devices.h"
#include "tessera/backend/cuda/device/staging.h"
#include "tessera/backend/cuda/kernels/op_workspace.h"
#include "tessera/backend/cuda/products/lt_gemms.h"
#include "tessera/backend/device_backend.h"
#include "tessera/backend/view_types.h"
#include "tessera/base/error.h"
#include "tessera/base/mapping.h"
#include "tessera/base/units.h"

namespace tessera::cuda {
namespace {

using Stream = Handle<cudaStream_t, cudaStreamDestroy>;
using Event = Handle<cudaEvent_t, cudaEventDestroy>;
using Graph = Handle<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;

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

cudaGraphExec_t instantiate(const Graph& graph) {
  cudaGraphExec_t exec = nullptr;
  // Kernels keep the priority of the streams that they were recorded on.
  check(cudaGraphInstantiate(&exec, graph.get(), cudaGraphInstantiateFlagUseNodePriority),
        "cudaGraphInstantiate()");
  return exec;
}

// One of a backend's, whose graph may have to end before it.
class CudaRecording final : public Recording {
 public:
  CudaRecording(const Graph& graph,
                std::set<CudaRecording*>& all,
                std::function<void(cudaGraphExec_t)> begin)
      : exec_(std::make_unique<GraphExec>(instantiate(graph))),
        all_(all),
        begin_(std::move(begin)) {
    all_.insert(this);
  }

  ~CudaRecording() override { all_.erase(this); }

  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;

  void replay() override {
    TESSERA_CHECK(exec_ != nullptr, "a replay of what was dropped");
    begin_(exec_->get());
  }

  // What the first replay would else do on its way. Returns when the stream is done with it.
  void make_ready(cudaStream_t stream) {
    check(cudaGraphUpload(exec_->get(), stream), "cudaGraphUpload()");
    synchronize(stream);
  }

  void drop() { exec_.reset(); }

 private:
  std::unique_ptr<GraphExec> exec_;
  std::set<CudaRecording*>& all_;
  std::function<void(cudaGraphExec_t)> begin_;
};

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing()");
  return status != cudaStreamCaptureStatusNone;
}

// What `runs` enqueues on the stream, and on those that wait for it and for which it then waits.
cudaGraph_t capture(cudaStream_t stream, const std::function<void()>& runs) {
  // Other threads, which may wait for their devices meanwhile, do not disturb it.
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture()");
  cudaGraph_t graph = nullptr;
  try {
    runs();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream, &graph));
    const Graph unfinished(graph);
    static_cast<void>(cudaGetLastError());
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph),
        "cudaStreamEndCapture() (run.cuda_graphs = false runs without)");
  return graph;
}

cudaStream_t create_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags()");
  return stream;
}

// One whose kernels go before those of others that have yet to begin: collectives, for which other
// ranks wait, take few multiprocessors each.
cudaStream_t create_urgent_stream() {
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange()");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
        "cudaStreamCreateWithPriority()");
  return stream;
}

cudaEvent_t create_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags()");
  return event;
}

// Lets this thread's device use the memory of another one, by its kernels.
void reach(int own, int other) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, own, other), "cudaDeviceCanAccessPeer()");
  TESSERA_REQUIRE(can != 0,
                  ErrorCode::kUnsupported,
                  "GPU {} cannot use the memory of GPU {}, which ranks in one process do: show it "
                  "devices that can (CUDA_VISIBLE_DEVICES; nvidia-smi topo -p2p r shows which)",
                  own,
                  other);
  const cudaError_t result = cudaDeviceEnablePeerAccess(other, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  check(result, "cudaDeviceEnablePeerAccess()");
}

// The device of one of several ranks, which with kMemory reaches those of the others.
int select_device_of(std::int64_t rank, std::int64_t num_ranks, Shared shared) {
  const std::int64_t in_use = std::min(num_ranks, num_usable_devices());
  const int own = ordinal_of(in_use == 0 ? 0 : rank % in_use);
  std::vector<int> others;
  for (std::int64_t number = 0; shared == Shared::kMemory && number < in_use; ++number) {
    if (const int other = ordinal_of(number); other != own) {
      others.push_back(other);
    }
  }
  // Not before: to look for devices may select them.
  check(cudaSetDevice(own), "cudaSetDevice()");
  for (const int other : others) {
    reach(own, other);
  }
  return own;
}

int multiprocessors_of(int ordinal) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal),
        "cudaDeviceGetAttribute()");
  return count;
}

constexpr std::size_t kFaultBytes = 256;  // that of a Fault, as staging takes it
static_assert(sizeof(Fault) <= kFaultBytes);

class CudaBackend final : public DeviceBackend {
 public:
  CudaBackend(std::int64_t rank, std::int64_t num_ranks, const DeviceOptions& options)
      : ordinal_(select_device_of(rank, num_ranks, options.shared)),
        may_record_(options.may_record),
        stream_(create_stream()),
        comm_stream_(create_urgent_stream()),
        fault_(sizeof(Fault), stream_.get()),
        gemms_(make_lt_gemms(options)),
        graphs_(options.library_attention ? make_cudnn_graphs() : std::make_unique<NoGraphs>()),
        context_(stream_.get(), fault(), *gemms_, *graphs_, multiprocessors_of(ordinal_)),
        comm_context_(
            comm_stream_.get(), fault(), *gemms_, *graphs_, multiprocessors_of(ordinal_)) {
    cuda::synchronize(stream_.get());  // before the other one uses what was zeroed
  }

  std::string_view name() const override { return "cuda"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override {
    auto arena = std::make_unique<CudaArena>(bytes, stream_.get());
    cuda::synchronize(stream_.get());  // as above
    return arena;
  }

  void draw(const Initial& initial, const View& out) override {
    draw_elements(context_, initial, out);
    cuda::synchronize(stream_.get());
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
      run_op(context_, op, views);
    } else if (orders_streams()) {
      run_op(comm_context_, op, views);
    } else {
      check(cudaSetDevice(ordinal_), "cudaSetDevice()");
      wait_for(handed_over_, comm_stream_.get());
      run_op(comm_context_, op, views);
      cuda::synchronize(comm_stream_.get());
    }
  }

  bool orders_streams() const override { return native_.wait != nullptr; }

  void hand_over() override { signal(handed_over_, stream_.get()); }

  void signal(std::size_t number, StreamId stream) override {
    while (events_.size() <= number) {
      events_.emplace_back(create_event());
    }
    signal(events_[number], native_stream(stream));
    is_known_.resize(events_.size(), false);
    is_known_[number] = true;
  }

  void wait(std::size_t number, StreamId stream) override {
    if (number < is_known_.size() && is_known_[number]) {
      wait_for(events_[number], native_stream(stream));
    }
  }

  bool records(const Op& op, std::span<const TensorType> operands) const override {
    return may_record_ && (orders_streams() || !waits_for_ranks(op, operands));
  }

  std::unique_ptr<Recording> record(const std::function<void()>& runs) override {
    const Traffic before = sent();
    forget_signals();
    const Graph graph(capture_all(runs));
    forget_signals();
    Traffic sent_by_it = sent();
    add(sent_by_it, before, -1);
    add_sent(sent_by_it, -1);  // each replay counts it
    auto recording = std::make_unique<CudaRecording>(
        graph, recordings_, [this, sent_by_it](cudaGraphExec_t exec) { replay(exec, sent_by_it); });
    if (has_recorded_collectives_ && native_.meet) {
      recording->make_ready(stream_.get());
      native_.meet();
    }
    return recording;
  }

  // Collectives first, whose wait has a deadline.
  void synchronize() override {
    forget_signals();
    if (orders_streams()) {
      native_.wait();
    }
    cuda::synchronize(comm_stream_.get());
    cuda::synchronize(stream_.get());
    Fault found;
    staging_.to_host(reinterpret_cast<std::byte*>(&found), fault_.data(), sizeof found);
    if (found.kind != 0) {
      check(cudaMemsetAsync(fault_.data(), 0, sizeof found, stream_.get()), "cudaMemsetAsync()");
      cuda::synchronize(stream_.get());
      throw_fault(found);
    }
    gemms_->keep_choices();
  }

  // The host waits for other ranks, in collectives.
  void abort(std::string_view reason) override {
    if (abort_) {
      abort_(reason);
    }
  }

  const Mover& mover(StreamId stream) const override { return context_of(stream).mover(); }

  void set_communicators(StreamId stream, CommunicatorOf communicator_of) override {
    (stream == StreamId{0} ? context_ : comm_context_)
        .set_communicators(std::move(communicator_of));
  }

  CUstream_st* native_stream(StreamId stream) const override { return context_of(stream).stream(); }

  int ordinal() const override { return ordinal_; }

  void set_native(NativeCollectives native) override { native_ = std::move(native); }

  void drop_recordings() override {
    for (CudaRecording* const recording : recordings_) {
      recording->drop();
    }
  }

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
  Fault* fault() const { return reinterpret_cast<Fault*>(fault_.data()); }

  static void signal(const Event& event, cudaStream_t stream) {
    check(cudaEventRecord(event.get(), stream), "cudaEventRecord()");
  }

  static void wait_for(const Event& event, cudaStream_t stream) {
    check(cudaStreamWaitEvent(stream, event.get(), 0), "cudaStreamWaitEvent()");
  }

  cudaGraph_t capture_all(const std::function<void()>& runs) {
    is_recording_ = true;
    has_recorded_collectives_ = false;
    try {
      const cudaGraph_t graph = capture(stream_.get(), [&] {
        runs();
        if (is_capturing(comm_stream_.get())) {
          join(comm_stream_.get(), stream_.get());
        }
      });
      is_recording_ = false;
      return graph;
    } catch (...) {
      is_recording_ = false;
      throw;
    }
  }

  // By the thread that has both streams.
  void prepare(const Op& op, const Views& views) {
    if (is_recording_) {
      has_recorded_collectives_ =
          has_recorded_collectives_ || waits_for_ranks(op, types_of(views.in));
    } else if (native_.watch) {
      stay_close();
    }
  }

  // A device takes about a thousand launches of a stream before it blocks who begins more. Behind a
  // collective that hangs that would be for ever: so the rank is at most twice this many ops ahead.
  void stay_close() {
    constexpr int kOps = 64;
    if (++num_begun_ < kOps) {
      return;
    }
    num_begun_ = 0;
    native_.watch([&] { return is_done(marked_); });
    signal(marked_, stream_.get());
  }

  static bool is_done(const Event& event) {
    const cudaError_t state = cudaEventQuery(event.get());
    if (state == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    check(state, "cudaEventQuery()");
    return true;
  }

  // What `then` is given from now on begins when `first` is done with what it was given.
  void join(cudaStream_t first, cudaStream_t then) {
    signal(joined_, first);
    wait_for(joined_, then);
  }

  void replay(cudaGraphExec_t exec, const Traffic& sent_by_it) {
    if (orders_streams()) {
      join(comm_stream_.get(), stream_.get());
    }
    check(cudaGraphLaunch(exec, stream_.get()), "cudaGraphLaunch()");
    forget_signals();
    add_sent(sent_by_it, 1);
  }

  // A recording knows no event from before it, nor does what follows know those of a recording.
  void forget_signals() { is_known_.assign(is_known_.size(), false); }

  Traffic sent() const { return native_.sent ? native_.sent() : Traffic(); }

  void add_sent(const Traffic& traffic, std::int64_t times) const {
    if (native_.add_sent) {
      Traffic more;
      add(more, traffic, times);
      native_.add_sent(more);
    }
  }

  const Context& context_of(StreamId stream) const {
    return stream == StreamId{0} ? context_ : comm_context_;
  }

  int ordinal_;
  bool may_record_;
  Stream stream_;
  Stream comm_stream_;
  DeviceMemory fault_;
  Staging staging_ = Staging(stream_.get(), kFaultBytes);
  std::unique_ptr<Gemms> gemms_;
  std::unique_ptr<Graphs> graphs_;
  Context context_;
  Context comm_context_;
  Event handed_over_ = Event(create_event());
  Event joined_ = Event(create_event());
  Event marked_ = Event(create_event());  // behind the ops that stay_close() last counted
  int num_begun_ = 0;                     // since then
  bool is_recording_ = false;
  bool has_recorded_collectives_ = false;  // in the last recording of both streams
  std::deque<Event> events_;               // by number
  std::vector<bool> is_known_;             // by number: whether what waits for it finds it
  std::set<CudaRecording*> recordings_;
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
