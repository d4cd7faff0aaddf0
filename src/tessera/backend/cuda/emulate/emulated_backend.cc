#include "tessera/backend/cuda/emulate/emulated_backend.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/gemm.h"
#include "tessera/backend/cpu/widened_gemm.h"
#include "tessera/backend/cuda/device/context.h"
#include "tessera/backend/cuda/device/dispatch.h"
#include "tessera/backend/cuda/device/draw.h"
#include "tessera/backend/cuda/device/fault.h"
#include "tessera/backend/cuda/emulate/emulate.h"
#include "tessera/backend/cuda/emulate/run_graph.h"
#include "tessera/backend/cuda/emulate/stream_queues.h"
#include "tessera/backend/cuda/kernels/op_workspace.h"
#include "tessera/backend/cuda/machine/limits.h"
#include "tessera/backend/cuda/products/gemm.h"
#include "tessera/backend/null/null_backend.h"
#include "tessera/backend/view_types.h"
#include "tessera/base/error.h"
#include "tessera/ops/bias/bias.h"
#include "tessera/ops/point_to_point/point_to_point.h"

namespace tessera::cuda {
namespace {

// The problems of tests are small, and have parts and many documents all the same; tests look at
// every byte of a workspace, of which products here need none.
[[maybe_unused]] const bool kHasSmallLimits = [] {
  limits() = {
      .gemm_workspace = 256, .flash_workspace = std::int64_t{100} << 10U, .tokens_of_document = 8};
  return true;
}();

ThreadOrder other_than(ThreadOrder order) {
  return order == ThreadOrder::kForward ? ThreadOrder::kBackward : ThreadOrder::kForward;
}

// The CPU backend's products, which tests of its own hold to their reference.
class CpuGemms final : public Gemms {
 public:
  void run(CUstream_st* /*stream*/,
           const Gemm& gemm,
           const GemmOperands& operands,
           std::span<std::byte> /*workspace*/) override {
    if (was_recorded([=, this] { run(nullptr, gemm, operands, {}); })) {
      return;
    }
    // The workspace that a device gets is of another size.
    workspace_.resize(static_cast<std::size_t>(cpu::gemm_workspace_bytes(context_, gemm)));
    multiply(gemm, operands);
    if (operands.bias != nullptr) {
      const std::array<View, 2> in = {matrix(gemm, operands.c), row(gemm, operands.bias)};
      tessera::run(
          AddBiasAttrs{}, context_, {.in = in, .out = std::span(in).first(1), .workspace = {}});
    }
  }

  void run_batch(CUstream_st* stream,
                 const Gemm& gemm,
                 const GemmBatch& batch,
                 const GemmOperands& first,
                 std::span<std::byte> workspace) override {
    const auto at = [](const void* start, std::int64_t elements, DType dtype) {
      return static_cast<const std::byte*>(start) +
             elements * static_cast<std::int64_t>(size_bytes(dtype));
    };
    for (std::int64_t i = 0; i < batch.count; ++i) {
      const std::byte* const c = at(first.c, i * batch.stride_c, gemm.output);
      run(stream,
          gemm,
          {.a = at(first.a, i * batch.stride_a, gemm.input),
           .b = at(first.b, i * batch.stride_b, gemm.input),
           .c = const_cast<std::byte*>(c)},
          workspace);
    }
  }

  void set_tf32(bool tf32) { tf32_ = tf32; }

  void run_float8(CUstream_st* /*stream*/,
                  const Float8Gemm& product,
                  const Float8Operands& operands,
                  std::span<std::byte> /*workspace*/) override {
    if (was_recorded([=, this] { run_float8(nullptr, product, operands, {}); })) {
      return;
    }
    Gemm gemm = product.gemm;
    TESSERA_CHECK(!gemm.transpose_a && gemm.transpose_b && gemm.k % 16 == 0 && gemm.n % 16 == 0 &&
                      gemm.pitch_a % 16 == 0 && gemm.pitch_b % 16 == 0,
                  "a product of 8-bit floats that tensor cores do not take");
    gemm.input = product.a;
    workspace_.resize(static_cast<std::size_t>(cpu::widened_gemm_workspace_bytes(context_, gemm)));
    const auto factor = [&](DType dtype, const void* codes, const float* inverse) {
      return cpu::Float8Factor{
          .dtype = dtype, .codes = codes, .inverse = inverse, .is_one = !product.by_row};
    };
    cpu::run_float8_gemm(context_,
                         gemm,
                         factor(product.a, operands.a, operands.inverse_a),
                         factor(product.b, operands.b, operands.inverse_b),
                         operands.c,
                         workspace_);
  }

 private:
  void multiply(const Gemm& gemm, const GemmOperands& operands) {
    if (!tf32_ || gemm.input != DType::kF32) {
      cpu::run_gemm(context_, gemm, operands.a, operands.b, operands.c, workspace_);
      return;
    }
    const std::vector<float> a = gemm.transpose_a
                                     ? in_tf32(operands.a, gemm.k, gemm.m, gemm.pitch_a)
                                     : in_tf32(operands.a, gemm.m, gemm.k, gemm.pitch_a);
    const std::vector<float> b = gemm.transpose_b
                                     ? in_tf32(operands.b, gemm.n, gemm.k, gemm.pitch_b)
                                     : in_tf32(operands.b, gemm.k, gemm.n, gemm.pitch_b);
    cpu::run_gemm(context_, gemm, a.data(), b.data(), operands.c, workspace_);
  }

  static View matrix(const Gemm& gemm, void* c) {
    return {.data = c,
            .dtype = gemm.output,
            .num_dims = 2,
            .sizes = {gemm.m, gemm.n},
            .strides = {gemm.pitch_c, 1}};
  }

  static View row(const Gemm& gemm, const void* bias) {
    return {.data = const_cast<void*>(bias),
            .dtype = gemm.output,
            .num_dims = 1,
            .sizes = {gemm.n},
            .strides = {1}};
  }

  // A factor as tensor cores read it: rounded to 10 bits behind the first, ties away from zero.
  static std::vector<float> in_tf32(const void* factor,
                                    std::int64_t rows,
                                    std::int64_t columns,
                                    std::int64_t pitch) {
    constexpr std::uint32_t kGone = 0x1fffU;
    const auto* const from = static_cast<const float*>(factor);
    std::vector<float> rounded(from, from + (rows - 1) * pitch + columns);
    for (float& value : rounded) {
      value =
          std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + (kGone + 1) / 2) & ~kGone);
    }
    return rounded;
  }

  bool tf32_ = false;
  cpu::Context context_ = cpu::Context(1);
  std::vector<std::byte> workspace_;
};

// Gives the streams again what they were given while it was recorded.
class EmulatedRecording final : public Recording {
 public:
  explicit EmulatedRecording(std::vector<std::function<void()>> given) : given_(std::move(given)) {}

  void replay() override {
    for (const std::function<void()>& give : given_) {
      give();
    }
  }

 private:
  std::vector<std::function<void()>> given_;
};

constexpr StreamId kOwnStream = StreamId{0};
constexpr StreamId kCommStream = StreamId{1};

// In which order the threads of a backend's streams begin: each backend begins in the other one.
ThreadOrder next_order() {
  static std::atomic<int> backends = 0;
  return backends.fetch_add(1) % 2 == 0 ? ThreadOrder::kForward : ThreadOrder::kBackward;
}

class EmulatedBackend final : public DeviceBackend {
 public:
  explicit EmulatedBackend(const DeviceOptions& options)
      : options_(options), own_(stream_of(kOwnStream)) {
    stream_of(kCommStream);
  }

  std::string_view name() const override { return "emulated cuda"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override { return memory_->allocate(bytes); }

  std::unique_ptr<Arena> allocate_host(std::int64_t bytes) override {
    return memory_->allocate_host(bytes);
  }

  void draw(const Initial& initial, const View& out) override {
    draw_elements(own_.context, initial, out);
  }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return op_workspace_bytes(op, operands, results);
  }

  // In the other order of threads each time: what is run again must give the same bits.
  void run(const Op& op, const Views& views, StreamId stream) override {
    const std::vector<View> in(views.in.begin(), views.in.end());
    const std::vector<View> out(views.out.begin(), views.out.end());
    const auto work = [this, &op, in, out, workspace = views.workspace, stream] {
      run_now(op, {.in = in, .out = out, .workspace = workspace}, stream);
    };
    const bool meets = orders_streams() && waits_for_ranks(op, types_of(views.in));
    // Where the host orders streams, the threads of others record nothing.
    if ((stream != kOwnStream && !orders_streams()) || recorded_ == nullptr) {
      begin(stream, work, meets);
    } else if (meets) {
      has_recorded_collectives_ = true;
      recorded_->emplace_back([this, work, stream] { begin(stream, work, true); });
    } else {
      recorded_->emplace_back(
          [this, kernels = kernels_of(work), stream] { give(stream, kernels); });
    }
  }

  bool orders_streams() const override { return native_.wait != nullptr; }

  World* world() override { return world_; }

  Channel* channel(const Op& op) override {
    return transfers_ ? channel_of(op, transfers_->context) : nullptr;
  }

  void make_channels(std::span<const PlacedTransfer> transfers) override {
    if (!orders_streams() && !transfers.empty() && !transfers_) {
      transfers_.emplace(options_);
      give_channels(transfers_->context);
    }
    if (orders_streams()) {
      for (const PlacedTransfer& transfer : transfers) {
        channel_of(*transfer.op, stream_of(transfer.stream).context);
      }
    }
  }

  void signal(std::size_t number, StreamId stream) override {
    if (recorded_ != nullptr) {
      recorded_->emplace_back([=, this] { signal(number, stream); });
      return;
    }
    give(stream, queues_.signal(number));
  }

  void wait(std::size_t number, StreamId stream) override {
    if (recorded_ != nullptr) {
      recorded_->emplace_back([=, this] { wait(number, stream); });
    } else {
      queues_.wait(number, stream.at());
    }
  }

  bool records(const Op& op, std::span<const TensorType> operands) const override {
    return options_.may_record && (orders_streams() || !waits_for_ranks(op, operands));
  }

  // Streams come together in the first before a replay and behind it, as those of a graph do.
  std::unique_ptr<Recording> record(const std::function<void()>& runs) override {
    std::vector<std::function<void()>> given;
    given.emplace_back([this] { join_streams(); });
    recorded_ = &given;
    has_recorded_collectives_ = false;
    try {
      runs();
    } catch (...) {
      recorded_ = nullptr;
      throw;
    }
    recorded_ = nullptr;
    given.emplace_back([this] { join_streams(); });
    if (has_recorded_collectives_ && native_.meet) {
      native_.meet();
    }
    return std::make_unique<EmulatedRecording>(std::move(given));
  }

  void synchronize() override {
    queues_.forget_signals();
    if (orders_streams()) {
      native_.wait();
    }
    queues_.work_off();
    const std::scoped_lock lock(mutex_);
    for (auto& [number, stream] : streams_) {
      throw_fault(std::exchange(stream.fault, {}));
    }
  }

  void abort(std::string_view reason) override {
    if (abort_) {
      abort_(reason);
    }
  }

  const Mover& mover(StreamId stream) const override {
    const std::scoped_lock lock(mutex_);
    return streams_.at(stream).context.mover();
  }

  void set_communicators(StreamId stream, CommunicatorOf communicator_of) override {
    stream_of(stream).context.set_communicators(std::move(communicator_of));
  }

  void set_channels(World& world, ChannelsOf channels_of) override {
    world_ = &world;
    channels_of_ = std::move(channels_of);
    for (auto& [number, stream] : streams_) {
      give_channels(stream.context);
    }
  }

  CUstream_st* native_stream(StreamId /*stream*/) const override { return nullptr; }

  CUstream_st* native_stream(const Mover& /*mover*/) const override { return nullptr; }

  int ordinal() const override { return 0; }

  void set_native(NativeCollectives native) override { native_ = std::move(native); }

  void drop_recordings() override {}

  void set_abort(std::function<void(std::string_view reason)> abort) override {
    abort_ = std::move(abort);
  }

 private:
  // Each may run on a thread of its own, where the host orders them.
  struct Stream {
    explicit Stream(const DeviceOptions& options)
        : graphs(options.library_attention ? make_interpreted_graphs()
                                           : std::make_unique<NoGraphs>()) {
      gemms.set_tf32(options.tf32);
    }

    CpuGemms gemms;
    std::unique_ptr<Graphs> graphs;
    ThreadOrder order = next_order();
    Fault fault;
    Context context = Context(nullptr, &fault, gemms, *graphs, 1);
  };

  template <class Context>
  void give_channels(Context& context) const {
    if (channels_of_) {
      context.set_channels(channels_of_(context.mover()));
    }
  }

  // Made where there is none yet.
  Stream& stream_of(StreamId number) {
    const std::scoped_lock lock(mutex_);
    const auto [found, is_new] = streams_.try_emplace(number, options_);
    if (is_new) {
      give_channels(found->second.context);
    }
    return found->second;
  }

  void run_now(const Op& op, const Views& views, StreamId stream) {
    Stream& own = stream_of(stream);
    own.order = other_than(own.order);
    set_thread_order(own.order);
    run_op(own.context, op, views);
  }

  // What an op launches, with the arguments that it has now.
  std::function<void()> kernels_of(const std::function<void()>& work) {
    std::vector<std::function<void()>> kernels;
    record_into(&kernels);
    try {
      work();
    } catch (...) {
      record_into(nullptr);
      throw;
    }
    record_into(nullptr);
    return [kernels] {
      for (const std::function<void()>& kernel : kernels) {
        kernel();
      }
    };
  }

  void join_streams() {
    for (const auto& [number, stream] : streams_) {
      if (number != kOwnStream) {
        const std::size_t joined = std::numeric_limits<std::size_t>::max() - number.at();
        signal(joined, number);  // which no event has
        wait(joined, kOwnStream);
      }
    }
    queues_.forget_signals();
  }

  // `meets`: work that meets other ranks, and only begins here.
  void begin(StreamId stream, const std::function<void()>& work, bool meets) {
    if (meets) {
      queues_.launch(stream.at(), work);
    } else {
      give(stream, work);
    }
  }

  // At once where the host orders streams.
  void give(StreamId stream, const std::function<void()>& work) {
    if (orders_streams()) {
      queues_.give(stream.at(), work);
    } else {
      work();
    }
  }

  DeviceOptions options_;
  std::vector<std::function<void()>>* recorded_ = nullptr;  // where run() puts what it begins
  bool has_recorded_collectives_ = false;
  StreamQueues queues_;
  NativeCollectives native_;
  std::unique_ptr<Backend> memory_ = make_null_backend();
  World* world_ = nullptr;
  ChannelsOf channels_of_;
  // Streams' threads make theirs at one time. What goes through all of them comes before or after.
  mutable std::mutex mutex_;
  std::map<StreamId, Stream> streams_;
  std::optional<Stream> transfers_;  // of all streams, where the host moves memory
  Stream& own_;
  std::function<void(std::string_view)> abort_;
};

}  // namespace

// Kernels are done when they are launched.
void synchronize(CUstream_st* /*stream*/) {}

std::unique_ptr<DeviceBackend> make_emulated_backend(const DeviceOptions& options) {
  return std::make_unique<EmulatedBackend>(options);
}

}  // namespace tessera::cuda
