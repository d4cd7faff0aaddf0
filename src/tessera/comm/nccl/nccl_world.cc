// The entry of the plugin libtessera_nccl.so.

#include "tessera/comm/nccl/nccl_world.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "tessera/base/error.h"
#include "tessera/comm/channel.h"
#include "tessera/comm/channel_call.h"
#include "tessera/comm/nccl/nccl_bootstrap.h"
#include "tessera/comm/nccl/nccl_channel.h"
#include "tessera/comm/nccl/nccl_check.h"
#include "tessera/comm/nccl/nccl_communicator.h"
#include "tessera/comm/nccl/nccl_plugin.h"

namespace tessera {
namespace {

// Groups of the host that carry no data, by which members of NCCL's introduce each other.
constexpr std::int64_t kFirstHostGeneration = std::int64_t{1} << 32;

DeviceUuid uuid_of(int device) {
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties()");
  DeviceUuid uuid = {};
  static_assert(sizeof properties.uuid == sizeof uuid);
  std::memcpy(uuid.data(), &properties.uuid, sizeof uuid);
  return uuid;
}

NcclId make_id() {
  ncclUniqueId unique = {};
  check_nccl(ncclGetUniqueId(&unique), "ncclGetUniqueId()");
  NcclId id = {};
  static_assert(sizeof unique == sizeof id);
  std::memcpy(id.data(), &unique, sizeof id);
  return id;
}

void select_device(int device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  TESSERA_REQUIRE(error == cudaSuccess && device >= 0 && device < count,
                  ErrorCode::kInvalidConfig,
                  "NCCL on GPU {} of {} that the driver shows: tessera doctor says what is missing",
                  device,
                  error == cudaSuccess ? count : 0);
  check_cuda(cudaSetDevice(device), "cudaSetDevice()");
}

class PluginWorld final : public NcclWorld {
 public:
  PluginWorld(World& host, const NcclOptions& options)
      : NcclWorld(host),
        rank_{.host = host,
              .options = options.world,
              .device = options.device,
              .drop_recordings = options.drop_recordings},
        stream_of_(options.stream_of) {
    if (stream_of_ != nullptr) {
      rank_.queues = &all_queues_;
    }
    select_device(options.device);
    uuid_ = uuid_of(options.device);
  }

  PluginWorld(const PluginWorld&) = delete;
  PluginWorld& operator=(const PluginWorld&) = delete;

  ~PluginWorld() override {
    queues_.clear();
    for (cudaStream_t stream : own_streams_) {
      cudaStreamDestroy(stream);
    }
  }

  // NCCL moves the bytes itself.
  std::unique_ptr<Communicator> group(std::span<const std::int64_t> members,
                                      std::int64_t generation,
                                      const Mover& mover) override {
    return communicator(members, generation, queue(generation, mover));
  }

  std::unique_ptr<Channel> channel(const ChannelKey& key,
                                   std::int64_t generation,
                                   const Mover& mover) override {
    require_channel_of(key, rank(), size());
    const std::shared_ptr<NcclQueue> own = queue(generation, mover);
    auto* const zero = static_cast<std::byte*>(own->zero());
    return std::make_unique<NcclChannel>(
        communicator(std::array{key.from, key.to}, generation, own),
        std::span(zero, sizeof(std::int64_t)));
  }

  void leave() override { host().leave(); }

  void synchronize(std::span<const std::int64_t> generations) override {
    const std::vector<NcclQueue*> queues = queues_of(generations);
    if (!queues.empty()) {
      NcclQueue::synchronize(queues);
    }
  }

  void watch(const std::function<bool()>& is_done) override {
    std::vector<NcclQueue*> queues;
    {
      const std::scoped_lock lock(mutex_);
      queues = all_queues_;
    }
    NcclQueue::watch(rank_, queues, is_done);
  }

  void stop() override {
    const std::scoped_lock lock(mutex_);
    NcclQueue::stop(all_queues_);
  }

 private:
  // Of a generation, the stream that the caller gives or none.
  using QueueName = std::pair<std::int64_t, cudaStream_t>;

  std::unique_ptr<NcclCommunicator> communicator(std::span<const std::int64_t> members,
                                                 std::int64_t generation,
                                                 const std::shared_ptr<NcclQueue>& queue) {
    check_cuda(cudaSetDevice(rank_.device), "cudaSetDevice()");
    const auto meeting = host().group(members, kFirstHostGeneration + generation);
    introduce_devices(*meeting, members, uuid_);
    const NcclId id = share_id(*meeting, make_id);
    return std::make_unique<NcclCommunicator>(rank_, members, id, queue);
  }

  std::shared_ptr<NcclQueue> queue(std::int64_t generation, const Mover& mover) {
    const cudaStream_t given = stream_of_ != nullptr ? stream_of_(mover) : nullptr;
    const std::scoped_lock lock(mutex_);
    const QueueName name = {generation, given};
    if (const auto found = queues_.find(name); found != queues_.end()) {
      return found->second;
    }
    check_cuda(cudaSetDevice(rank_.device), "cudaSetDevice()");
    const auto queue =
        std::make_shared<NcclQueue>(rank_, stream_of_ != nullptr ? given : own_stream());
    queues_.emplace(name, queue);
    all_queues_.push_back(queue.get());
    return queue;
  }

  std::vector<NcclQueue*> queues_of(std::span<const std::int64_t> generations) {
    std::vector<NcclQueue*> queues;
    const std::scoped_lock lock(mutex_);
    for (const auto& [name, queue] : queues_) {
      if (std::ranges::count(generations, name.first) > 0) {
        queues.push_back(queue.get());
      }
    }
    return queues;
  }

  cudaStream_t own_stream() {
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags()");
    own_streams_.push_back(stream);
    return stream;
  }

  NcclRank rank_;
  std::function<CUstream_st*(const Mover& mover)> stream_of_;
  DeviceUuid uuid_ = {};
  std::mutex mutex_;  // guards what follows; each queue has one thread
  std::map<QueueName, std::shared_ptr<NcclQueue>> queues_;
  std::vector<NcclQueue*> all_queues_;
  std::vector<cudaStream_t> own_streams_;
};

NcclWorld* join(World& host, const NcclOptions& options) {
  return std::make_unique<PluginWorld>(host, options).release();
}

int library_version() {
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion()");
  return version;
}

}  // namespace
}  // namespace tessera

extern "C" const tessera::NcclPlugin* tessera_nccl_plugin() {
  static constexpr tessera::NcclPlugin kPlugin = {.abi = tessera::kNcclPluginAbi,
                                                  .version = TESSERA_VERSION,
                                                  .library_version = tessera::library_version,
                                                  .join = tessera::join};
  return &kPlugin;
}
