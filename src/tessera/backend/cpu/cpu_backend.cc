#include "tessera/backend/cpu/cpu_backend.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/dispatch.h"
#include "tessera/backend/cpu/draw.h"
#include "tessera/base/mapping.h"
#include "tessera/ops/point_to_point/point_to_point.h"

namespace tessera {
namespace {

// In huge pages, since kernels stream through hundreds of megabytes.
class MappedArena final : public HostArena {
 public:
  explicit MappedArena(std::int64_t bytes)
      : mapping_(static_cast<std::size_t>(bytes), "the arena") {
    mapping_.prefer_huge_pages();
  }

  std::byte* data() override { return mapping_.data(); }

 private:
  Mapping mapping_;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, CommunicatorOf communicator_of, CpuCommStream comm)
      : comm_(comm.threads),
        compute_(threads),
        of_further_(std::move(comm.of_further)),
        channel_of_(std::move(comm.channel_of)),
        world_(comm.world),
        abort_(std::move(comm.abort)) {
    compute_.set_communicators(std::move(communicator_of));
    comm_.set_communicators(std::move(comm.communicator_of));
    compute_.set_channels(channel_of_);
    comm_.set_channels(channel_of_);
  }

  std::string_view name() const override { return "cpu"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override {
    return std::make_unique<MappedArena>(bytes);
  }

  void draw(const Initial& initial, const View& out) override {
    cpu::draw_elements(initial, out, compute_.team());
  }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return cpu::op_workspace_bytes(compute_, op, operands, results);
  }

  void run(const Op& op, const Views& views, StreamId stream) override {
    cpu::run_op(context_of(stream), op, views);
  }

  World* world() override { return world_; }

  Channel* channel(const Op& op) override { return channel_of(op, compute_); }

  void synchronize() override {}

  void abort(std::string_view reason) override {
    if (abort_) {
      abort_(reason);
    }
  }

 private:
  // The first two streams', or, from the first op on, that of a further one.
  cpu::Context& context_of(StreamId stream) {
    if (stream == StreamId{0} || stream == StreamId{1}) {
      return stream == StreamId{0} ? compute_ : comm_;
    }
    const std::scoped_lock lock(mutex_);
    std::unique_ptr<cpu::Context>& context = further_[stream];
    if (!context) {
      context = std::make_unique<cpu::Context>(1);
      context->set_channels(channel_of_);
      if (of_further_) {
        context->set_communicators(of_further_(stream));
      }
    }
    return *context;
  }

  cpu::Context comm_;
  cpu::Context compute_;
  std::function<CommunicatorOf(StreamId stream)> of_further_;
  ChannelOf channel_of_;
  World* world_;
  std::mutex mutex_;  // guards what follows
  std::map<StreamId, std::unique_ptr<cpu::Context>> further_;
  std::function<void(std::string_view)> abort_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads,
                                          CommunicatorOf communicator_of,
                                          CpuCommStream comm) {
  return std::make_unique<CpuBackend>(threads, std::move(communicator_of), std::move(comm));
}

}  // namespace tessera
