// Stands for CUDA's runtime and NCCL on machines without a GPU, as far as the plugin and its test
// use them: four devices, whose streams are threads and whose memory is the host's. What is given
// to a stream is done later, and what NCCL's documentation says of its calls holds: groups come
// about in the background, an operation waits for all members, an abort ends the waits of one
// member alone, and a group ends when no recording holds its operations any more.

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "tessera/comm/fold.h"
#include "tessera/comm/nccl/join_under_test.h"
#include "tessera/comm/nccl/nccl_plugin.h"
#include "tessera/comm/nccl/progress.h"

extern "C" const tessera::NcclPlugin* tessera_nccl_plugin();

namespace {

using Work = std::function<void()>;

constexpr int kDevices = 4;

thread_local int selected_device = 0;

}  // namespace

// The names here are CUDA's and NCCL's.
// NOLINTBEGIN(readability-identifier-naming)

struct CUgraph_st {
  std::vector<Work> work;
};

struct CUgraphExec_st {
  std::vector<Work> work;
};

struct CUstream_st {
 public:
  CUstream_st() : thread_([this](const std::stop_token& stop) { loop(stop); }) {}

  ~CUstream_st() {
    wait();
    thread_.request_stop();
    changed_.notify_all();
  }

  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  void give(Work work) {
    if (recorded != nullptr) {
      recorded->work.push_back(std::move(work));
      return;
    }
    const std::scoped_lock lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }

  bool is_done() {
    const std::scoped_lock lock(mutex_);
    return work_.empty();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.empty(); });
  }

  const int device = selected_device;
  cudaGraph_t recorded = nullptr;  // where what it is given goes

 private:
  void loop(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (work_.empty()) {
        changed_.wait(lock);
        continue;
      }
      const Work next = work_.front();
      lock.unlock();
      next();
      lock.lock();
      work_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::deque<Work> work_;  // the first is under way
  std::jthread thread_;
};

namespace {

// What a member of a group does in one operation of a list.
struct Part {
  enum class Kind { kAllGather, kAllReduce, kReduceScatter, kReduce, kBroadcast, kSend, kReceive };

  Kind kind;
  const std::byte* from;
  std::byte* to;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t fold;
  int other;  // the root or the peer
};

// A group, as all of its members share it.
struct Group {
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  int size = 0;
  int joined = 0;
  int arrived = 0;
  std::uint64_t meetings = 0;
  std::map<int, std::vector<Part>> parts;  // by member
};

}  // namespace

struct ncclComm {
  std::shared_ptr<Group> group;
  int rank = 0;
  // Shared with what has yet to run, and with recordings.
  std::shared_ptr<std::atomic<bool>> is_aborted = std::make_shared<std::atomic<bool>>(false);
  bool is_ending = false;
};

namespace {

std::size_t bytes_of(ncclDataType_t type) {
  return type == ncclUint8 ? 1 : type == ncclBfloat16 ? 2 : type == ncclFloat32 ? 4 : 8;
}

tessera::DType dtype_of(ncclDataType_t type) {
  return type == ncclBfloat16  ? tessera::DType::kBF16
         : type == ncclFloat32 ? tessera::DType::kF32
                               : tessera::DType::kI64;
}

// Returns when all members have come here, or when this one gives up: whether they have.
bool meet(Group& group, const std::atomic<bool>& is_aborted, const Work& arrive = [] {}) {
  std::unique_lock lock(group.mutex);
  if (is_aborted) {
    return false;
  }
  arrive();
  const std::uint64_t meeting = group.meetings;
  if (++group.arrived == group.size) {
    group.arrived = 0;
    ++group.meetings;
    group.changed.notify_all();
    return true;
  }
  group.changed.wait(lock, [&] { return group.meetings != meeting || is_aborted; });
  return group.meetings != meeting;
}

// What members fold, or this member's stretch of it.
std::vector<std::byte> fold(const Group& group,
                            std::size_t index,
                            std::size_t begin,
                            const Part& own) {
  std::vector<std::byte> result(own.count * bytes_of(own.type));
  std::vector<const std::byte*> sources;
  for (const auto& [member, parts] : group.parts) {
    sources.push_back(parts.at(index).from + begin * bytes_of(own.type));
  }
  tessera::fold_in_order(own.fold == ncclSum ? tessera::Fold::kSum : tessera::Fold::kMax,
                         sources,
                         {.dtype = dtype_of(own.type),
                          .data = result.data(),
                          .count = static_cast<std::int64_t>(own.count)});
  return result;
}

std::vector<std::byte> copy(const std::byte* from, std::size_t bytes) {
  return {from, from + bytes};
}

// What the peer sends that this member's receive `index` takes: the n-th of one is the n-th of the
// other.
const Part& sent_to(const Group& group, int rank, std::size_t index) {
  const std::vector<Part>& own = group.parts.at(rank);
  const auto is_from_peer = [&](const Part& part) {
    return part.kind == Part::Kind::kReceive && part.other == own[index].other;
  };
  auto left =
      std::count_if(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(index), is_from_peer);
  for (const Part& part : group.parts.at(own[index].other)) {
    if (part.kind == Part::Kind::kSend && part.other == rank && left-- == 0) {
      return part;
    }
  }
  std::abort();  // the plugin sends as much as it receives
}

// What operation `index` writes to a member's memory.
std::vector<std::byte> result_of(const Group& group, int rank, std::size_t index) {
  const Part& own = group.parts.at(rank)[index];
  const std::size_t bytes = own.count * bytes_of(own.type);
  switch (own.kind) {
    case Part::Kind::kAllGather: {
      std::vector<std::byte> all;
      for (const auto& [member, parts] : group.parts) {
        all.insert(all.end(), parts.at(index).from, parts.at(index).from + bytes);
      }
      return all;
    }
    case Part::Kind::kAllReduce:
      return fold(group, index, 0, own);
    case Part::Kind::kReduceScatter:
      return fold(group, index, static_cast<std::size_t>(rank) * own.count, own);
    case Part::Kind::kReduce:
      return rank == own.other ? fold(group, index, 0, own) : std::vector<std::byte>();
    case Part::Kind::kBroadcast:
      return copy(group.parts.at(own.other).at(index).from, bytes);
    case Part::Kind::kSend:
      return {};
    case Part::Kind::kReceive:
      return copy(sent_to(group, rank, index).from, bytes);
  }
  std::abort();
}

void run(Group& group,
         int rank,
         const std::vector<Part>& parts,
         const std::atomic<bool>& is_aborted) {
  if (!meet(group, is_aborted, [&] { group.parts[rank] = parts; })) {
    return;
  }
  std::vector<std::vector<std::byte>> results;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    results.push_back(result_of(group, rank, i));
  }
  if (!meet(group, is_aborted)) {
    return;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::ranges::copy(results[i], parts[i].to);
  }
  meet(group, is_aborted);
}

// Calls between ncclGroupStart() and ncclGroupEnd().
struct Calls {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Part> parts;
};

thread_local Calls calls;

ncclResult_t append(ncclComm_t comm, cudaStream_t stream, const Part& part) {
  if (calls.depth == 0 || (calls.comm != nullptr && calls.comm != comm)) {
    return ncclInvalidUsage;  // which the plugin does not do
  }
  calls.comm = comm;
  calls.stream = stream;
  calls.parts.push_back(part);
  return ncclSuccess;
}

std::mutex groups_mutex;

std::map<std::string, std::shared_ptr<Group>>& groups() {
  static std::map<std::string, std::shared_ptr<Group>> all;
  return all;
}

std::mutex streams_mutex;

std::set<cudaStream_t>& streams() {
  static std::set<cudaStream_t> all;
  return all;
}

// What it was given, all streams of the device.
void wait_for_device() {
  std::vector<cudaStream_t> all;
  {
    const std::scoped_lock lock(streams_mutex);
    std::ranges::copy_if(streams(), std::back_inserter(all), [](cudaStream_t stream) {
      return stream->device == selected_device;
    });
  }
  for (cudaStream_t stream : all) {
    stream->wait();
  }
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t /*error*/) {
  return "an error";
}

const char* cudaGetErrorString(cudaError_t /*error*/) {
  return "of what stands for CUDA";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(device);
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  selected_device = device;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  *data = std::malloc(bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  wait_for_device();
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned /*flags*/) {
  return cudaMalloc(data, bytes);
}

cudaError_t cudaFreeHost(void* data) {
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  stream->give([=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = new CUstream_st();
  const std::scoped_lock lock(streams_mutex);
  streams().insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::scoped_lock lock(streams_mutex);
    streams().erase(stream);
  }
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream->recorded != nullptr) {
    return cudaErrorStreamCaptureUnsupported;
  }
  return stream->is_done() ? cudaSuccess : cudaErrorNotReady;
}

// Of the first stream, by which the host's own copies go.
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status =
      stream->recorded != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  stream->recorded = new CUgraph_st();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->recorded, nullptr);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec,
                                 cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *exec = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Work& work : exec->work) {
    stream->give(work);
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t /*result*/) {
  return "an error of what stands for NCCL";
}

const char* ncclGetLastError(ncclComm_t /*comm*/) {
  return "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> number = 0;
  *id = {};
  const std::string text = std::to_string(++number);
  std::ranges::copy(text, id->internal);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* /*config*/) {
  std::shared_ptr<Group> group;
  {
    const std::scoped_lock lock(groups_mutex);
    std::shared_ptr<Group>& found = groups()[id.internal];
    if (found == nullptr) {
      found = std::make_shared<Group>();
    }
    group = found;
  }
  *comm = new ncclComm{.group = group, .rank = rank};
  const std::scoped_lock lock(group->mutex);
  group->size = size;
  ++group->joined;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::scoped_lock lock(comm->group->mutex);
  const bool is_held = comm->is_ending && comm->is_aborted.use_count() > 1;
  *state = comm->group->joined < comm->group->size || is_held ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  comm->is_ending = true;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::scoped_lock lock(comm->group->mutex);
    *comm->is_aborted = true;
    comm->group->changed.notify_all();
  }
  delete comm;
  return ncclInProgress;
}

ncclResult_t ncclGroupStart() {
  ++calls.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--calls.depth > 0 || calls.comm == nullptr) {
    return ncclSuccess;
  }
  const Calls done = std::exchange(calls, {});
  done.stream->give([group = done.comm->group,
                     rank = done.comm->rank,
                     is_aborted = done.comm->is_aborted,
                     parts = done.parts] { run(*group, rank, parts, *is_aborted); });
  return ncclInProgress;
}

ncclResult_t ncclAllGather(const void* from,
                           void* to,
                           std::size_t count,
                           ncclDataType_t type,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kAllGather,
                 .from = static_cast<const std::byte*>(from),
                 .to = static_cast<std::byte*>(to),
                 .count = count,
                 .type = type,
                 .fold = ncclSum,
                 .other = 0});
}

ncclResult_t ncclAllReduce(const void* from,
                           void* to,
                           std::size_t count,
                           ncclDataType_t type,
                           ncclRedOp_t fold,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kAllReduce,
                 .from = static_cast<const std::byte*>(from),
                 .to = static_cast<std::byte*>(to),
                 .count = count,
                 .type = type,
                 .fold = fold,
                 .other = 0});
}

ncclResult_t ncclReduceScatter(const void* from,
                               void* to,
                               std::size_t count,
                               ncclDataType_t type,
                               ncclRedOp_t fold,
                               ncclComm_t comm,
                               cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kReduceScatter,
                 .from = static_cast<const std::byte*>(from),
                 .to = static_cast<std::byte*>(to),
                 .count = count,
                 .type = type,
                 .fold = fold,
                 .other = 0});
}

ncclResult_t ncclReduce(const void* from,
                        void* to,
                        std::size_t count,
                        ncclDataType_t type,
                        ncclRedOp_t fold,
                        int root,
                        ncclComm_t comm,
                        cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kReduce,
                 .from = static_cast<const std::byte*>(from),
                 .to = static_cast<std::byte*>(to),
                 .count = count,
                 .type = type,
                 .fold = fold,
                 .other = root});
}

ncclResult_t ncclBroadcast(const void* from,
                           void* to,
                           std::size_t count,
                           ncclDataType_t type,
                           int root,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kBroadcast,
                 .from = static_cast<const std::byte*>(from),
                 .to = static_cast<std::byte*>(to),
                 .count = count,
                 .type = type,
                 .fold = ncclSum,
                 .other = root});
}

ncclResult_t ncclSend(const void* from,
                      std::size_t count,
                      ncclDataType_t type,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kSend,
                 .from = static_cast<const std::byte*>(from),
                 .to = nullptr,
                 .count = count,
                 .type = type,
                 .fold = ncclSum,
                 .other = peer});
}

ncclResult_t ncclRecv(void* to,
                      std::size_t count,
                      ncclDataType_t type,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kReceive,
                 .from = nullptr,
                 .to = static_cast<std::byte*>(to),
                 .count = count,
                 .type = type,
                 .fold = ncclSum,
                 .other = peer});
}

}  // extern "C"

// NOLINTEND(readability-identifier-naming)

namespace tessera {

cudaError_t enqueue_store(cudaStream_t stream, std::uint32_t* word, std::uint32_t value) {
  stream->give([=] { std::atomic_ref(*word).store(value); });
  return cudaSuccess;
}

std::unique_ptr<NcclWorld> join_under_test(World& host, const NcclOptions& options) {
  return std::unique_ptr<NcclWorld>(tessera_nccl_plugin()->join(host, options));
}

}  // namespace tessera
