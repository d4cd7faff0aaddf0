// Stands for NCCL on machines without a GPU, as far as the plugin uses it, over what stands for
// CUDA's runtime. What NCCL's documentation says of its calls holds: groups come about in the
// background, an operation waits for all members, an abort ends the waits of one member alone, and
// groups end, by abort too, when no recording holds their operations any more.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "tessera/backend/cuda/stand_in/stand_in_runtime.h"
#include "tessera/comm/fold.h"
#include "tessera/comm/nccl/join_under_test.h"
#include "tessera/comm/nccl/nccl_plugin.h"
#include "tessera/comm/nccl/progress.h"

extern "C" const tessera::NcclPlugin* tessera_nccl_plugin();

namespace {

using Work = std::function<void()>;

}  // namespace

// Names and the number of parameters here are CUDA's and NCCL's.
// NOLINTBEGIN(readability-identifier-naming, readability-function-size)

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
  if (group.meetings != meeting) {
    return true;
  }
  --group.arrived;  // whoever comes later does not meet this one
  return false;
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
  // All members are here, and do what follows whoever gives up, so that nobody's memory goes while
  // another one reads it.
  const std::atomic<bool> is_never_aborted = false;
  std::vector<std::vector<std::byte>> results;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    results.push_back(result_of(group, rank, i));
  }
  meet(group, is_never_aborted);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::ranges::copy(results[i], parts[i].to);
  }
  meet(group, is_never_aborted);
}

// Calls between ncclGroupStart() and ncclGroupEnd().
struct Calls {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Part> parts;
  std::vector<ncclComm_t> aborted;
};

// NCCL's interface has no place for these but where it has them itself.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
thread_local Calls calls;
std::mutex groups_mutex;

// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

ncclResult_t append(ncclComm_t comm, cudaStream_t stream, const Part& part) {
  if (calls.depth == 0 || (calls.comm != nullptr && calls.comm != comm)) {
    return ncclInvalidUsage;  // which the plugin does not do
  }
  calls.comm = comm;
  calls.stream = stream;
  calls.parts.push_back(part);
  return ncclSuccess;
}

// Aborts those of a group together, so that a stream that one of them leaves does not enter another
// one; returns when their operations are done, and no recording has any.
void end_aborted() {
  const std::vector<ncclComm_t> aborted = std::exchange(calls.aborted, {});
  for (const ncclComm_t comm : aborted) {
    *comm->is_aborted = true;
  }
  for (const ncclComm_t comm : aborted) {
    const std::scoped_lock lock(comm->group->mutex);
    comm->group->changed.notify_all();
  }
  for (const ncclComm_t comm : aborted) {
    while (comm->is_aborted.use_count() > 1) {
      std::this_thread::yield();
    }
    delete comm;
  }
}

std::map<std::string, std::shared_ptr<Group>>& groups() {
  static std::map<std::string, std::shared_ptr<Group>> all;
  return all;
}

}  // namespace

extern "C" {

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
    ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* /*config*/) {
  std::shared_ptr<Group> group;
  {
    const std::scoped_lock lock(groups_mutex);
    std::shared_ptr<Group>& found = groups()[commId.internal];
    if (found == nullptr) {
      found = std::make_shared<Group>();
    }
    group = found;
  }
  *comm = new ncclComm{.group = group, .rank = rank};
  const std::scoped_lock lock(group->mutex);
  group->size = nranks;
  ++group->joined;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  const std::scoped_lock lock(comm->group->mutex);
  const bool is_held = comm->is_ending && comm->is_aborted.use_count() > 1;
  *asyncError = comm->group->joined < comm->group->size || is_held ? ncclInProgress : ncclSuccess;
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
  calls.aborted.push_back(comm);
  if (calls.depth == 0) {
    end_aborted();
  }
  return ncclInProgress;
}

ncclResult_t ncclGroupStart() {
  ++calls.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--calls.depth > 0) {
    return ncclSuccess;
  }
  end_aborted();
  if (calls.comm == nullptr) {
    return ncclSuccess;
  }
  const Calls done = std::exchange(calls, {});
  done.stream->give([group = done.comm->group,
                     rank = done.comm->rank,
                     is_aborted = done.comm->is_aborted,
                     parts = done.parts] { run(*group, rank, parts, *is_aborted); });
  return ncclInProgress;
}

ncclResult_t ncclAllGather(const void* sendbuff,
                           void* recvbuff,
                           std::size_t sendcount,
                           ncclDataType_t datatype,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kAllGather,
                 .from = static_cast<const std::byte*>(sendbuff),
                 .to = static_cast<std::byte*>(recvbuff),
                 .count = sendcount,
                 .type = datatype,
                 .fold = ncclSum,
                 .other = 0});
}

ncclResult_t ncclAllReduce(const void* sendbuff,
                           void* recvbuff,
                           std::size_t count,
                           ncclDataType_t datatype,
                           ncclRedOp_t op,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kAllReduce,
                 .from = static_cast<const std::byte*>(sendbuff),
                 .to = static_cast<std::byte*>(recvbuff),
                 .count = count,
                 .type = datatype,
                 .fold = op,
                 .other = 0});
}

ncclResult_t ncclReduceScatter(const void* sendbuff,
                               void* recvbuff,
                               std::size_t recvcount,
                               ncclDataType_t datatype,
                               ncclRedOp_t op,
                               ncclComm_t comm,
                               cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kReduceScatter,
                 .from = static_cast<const std::byte*>(sendbuff),
                 .to = static_cast<std::byte*>(recvbuff),
                 .count = recvcount,
                 .type = datatype,
                 .fold = op,
                 .other = 0});
}

ncclResult_t ncclReduce(const void* sendbuff,
                        void* recvbuff,
                        std::size_t count,
                        ncclDataType_t datatype,
                        ncclRedOp_t op,
                        int root,
                        ncclComm_t comm,
                        cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kReduce,
                 .from = static_cast<const std::byte*>(sendbuff),
                 .to = static_cast<std::byte*>(recvbuff),
                 .count = count,
                 .type = datatype,
                 .fold = op,
                 .other = root});
}

ncclResult_t ncclBroadcast(const void* sendbuff,
                           void* recvbuff,
                           std::size_t count,
                           ncclDataType_t datatype,
                           int root,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kBroadcast,
                 .from = static_cast<const std::byte*>(sendbuff),
                 .to = static_cast<std::byte*>(recvbuff),
                 .count = count,
                 .type = datatype,
                 .fold = ncclSum,
                 .other = root});
}

ncclResult_t ncclSend(const void* sendbuff,
                      std::size_t count,
                      ncclDataType_t datatype,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kSend,
                 .from = static_cast<const std::byte*>(sendbuff),
                 .to = nullptr,
                 .count = count,
                 .type = datatype,
                 .fold = ncclSum,
                 .other = peer});
}

ncclResult_t ncclRecv(void* recvbuff,
                      std::size_t count,
                      ncclDataType_t datatype,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
  return append(comm,
                stream,
                {.kind = Part::Kind::kReceive,
                 .from = nullptr,
                 .to = static_cast<std::byte*>(recvbuff),
                 .count = count,
                 .type = datatype,
                 .fold = ncclSum,
                 .other = peer});
}

}  // extern "C"

// NOLINTEND(readability-identifier-naming, readability-function-size)

namespace tessera {

cudaError_t enqueue_store(cudaStream_t stream, std::uint32_t* word, std::uint32_t value) {
  stream->give([=] { std::atomic_ref(*word).store(value); });
  return cudaSuccess;
}

std::unique_ptr<NcclWorld> join_under_test(World& host, const NcclOptions& options) {
  return std::unique_ptr<NcclWorld>(tessera_nccl_plugin()->join(host, options));
}

double short_deadline_seconds() {
  return 1;
}

}  // namespace tessera
