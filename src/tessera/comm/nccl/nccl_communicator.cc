#include "tessera/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/nccl/nccl_check.h"

namespace tessera {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI64:
      return ncclInt64;
    case DType::kF64:
    case DType::kF16:
    case DType::kI32:
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      break;
  }
  fail(ErrorCode::kInternal, "a collective of {}: expected f32, bf16 or i64", name(dtype));
}

ncclRedOp_t fold_of(Fold fold) {
  return fold == Fold::kSum ? ncclSum : ncclMax;
}

std::size_t count_of(std::int64_t elements) {
  return static_cast<std::size_t>(elements);
}

bool is_done(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check_cuda(state, "cudaEventQuery()");
  return true;
}

}  // namespace

void NcclWait::pause() const {
  if (const auto reason = rank_.host.abort_reason()) {
    fail(ErrorCode::kPeerFailure, "{}", *reason);
  }
  constexpr auto kSpin = std::chrono::milliseconds(1);
  if (Clock::now() - start_ > kSpin) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void NcclWait::require_time(const std::string& doing) const {
  const std::chrono::duration<double> limit(rank_.options.patience_seconds());
  TESSERA_REQUIRE(Clock::now() - start_ <= limit,
                  ErrorCode::kTimeout,
                  "{}: no answer within {}; NCCL does not say from whom",
                  doing,
                  rank_.options.patience());
}

NcclQueue::~NcclQueue() {
  while (!enqueued_.empty()) {
    pop();
  }
  for (cudaEvent_t event : free_events_) {
    cudaEventDestroy(event);
  }
}

// Events serve again.
void NcclQueue::pop() {
  free_events_.push_back(enqueued_.front().begin);
  free_events_.push_back(enqueued_.front().end);
  enqueued_.pop_front();
  wait_.reset();
}

cudaEvent_t NcclQueue::take_event() {
  cudaEvent_t event = nullptr;
  if (free_events_.empty()) {
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
               "cudaEventCreateWithFlags()");
  } else {
    event = free_events_.back();
    free_events_.pop_back();
  }
  return event;
}

void NcclQueue::watch_all() {
  if (rank_.queues == nullptr) {
    watch_oldest();
    return;
  }
  for (NcclQueue* const queue : *rank_.queues) {
    queue->watch_oldest();
  }
}

void NcclQueue::begin(NcclCommunicator& group, const Call& call) {
  while (!enqueued_.empty() && is_done(enqueued_.front().end)) {
    pop();
  }
  // A device takes some hundreds of launches before it blocks who begins more.
  constexpr std::size_t kMostEnqueued = 16;
  for (const NcclWait wait(rank_); enqueued_.size() >= kMostEnqueued; wait.pause()) {
    watch_all();
  }
  const cudaEvent_t begin = take_event();
  enqueued_.push_back({.group = &group, .call = call, .begin = begin, .end = take_event()});
  check_cuda(cudaEventRecord(begin, stream_), "cudaEventRecord()");
}

void NcclQueue::end() {
  check_cuda(cudaEventRecord(enqueued_.back().end, stream_), "cudaEventRecord()");
}

bool NcclQueue::watch_oldest() {
  while (!enqueued_.empty() && is_done(enqueued_.front().end)) {
    pop();
  }
  if (enqueued_.empty()) {
    return true;
  }
  // Operations before it are done; kernels may take as long as they like.
  const Enqueued& oldest = enqueued_.front();
  if (!wait_ && is_done(oldest.begin)) {
    wait_.emplace(rank_);
  }
  const std::string doing = to_string(oldest.call);
  oldest.group->is_at_work(doing);
  if (wait_) {
    wait_->require_time(doing);
  }
  return false;
}

void NcclQueue::synchronize(std::span<NcclQueue* const> queues) {
  const NcclRank& rank = queues.front()->rank_;
  check_cuda(cudaSetDevice(rank.device), "cudaSetDevice()");
  try {
    for (const NcclWait wait(rank);; wait.pause()) {
      bool are_empty = true;
      for (NcclQueue* const queue : queues) {
        are_empty = queue->watch_oldest() && are_empty;
      }
      if (are_empty) {
        return;
      }
    }
  } catch (const Error& error) {
    rank.host.abort(error.message());
    stop(queues);
    throw;
  }
}

void NcclQueue::stop(std::span<NcclQueue* const> queues) {
  std::vector<NcclCommunicator*> groups;
  for (const NcclQueue* const queue : queues) {
    groups.insert(groups.end(), queue->groups_.begin(), queue->groups_.end());
  }
  NcclCommunicator::drop(groups);
}

void NcclQueue::stop() {
  NcclQueue* const own = this;
  stop(rank_.queues != nullptr ? std::span<NcclQueue* const>(*rank_.queues)
                               : std::span<NcclQueue* const>(&own, 1));
}

void NcclQueue::forget(const NcclCommunicator& group) {
  const auto gone =
      std::stable_partition(enqueued_.begin(), enqueued_.end(), [&](const Enqueued& each) {
        return each.group != &group;
      });
  for (auto each = gone; each != enqueued_.end(); ++each) {
    free_events_.push_back(each->begin);
    free_events_.push_back(each->end);
  }
  enqueued_.erase(gone, enqueued_.end());
  wait_.reset();
}

NcclCommunicator::NcclCommunicator(const NcclRank& rank,
                                   std::span<const std::int64_t> members,
                                   const NcclId& id,
                                   std::shared_ptr<NcclQueue> queue)
    : shared_(rank),
      rank_(place_in_group(members, rank.host.rank(), rank.host.size())),
      size_(static_cast<std::int64_t>(members.size())),
      queue_(std::move(queue)) {
  ncclUniqueId unique = {};
  static_assert(sizeof unique == sizeof id);
  std::memcpy(&unique, id.data(), sizeof unique);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  try {
    check_cuda(cudaMalloc(&word_, sizeof(std::int64_t)), "cudaMalloc()");
    check_cuda(cudaMemset(word_, 0, sizeof(std::int64_t)), "cudaMemset()");
    check_cuda(cudaDeviceSynchronize(),
               "cudaDeviceSynchronize()");  // before another stream uses it
    check_nccl(ncclCommInitRankConfig(
                   &comm_, static_cast<int>(size_), unique, static_cast<int>(rank_), &config),
               "ncclCommInitRankConfig()");
    settle(format("a group of ranks {}", list_ranks(members)));
  } catch (...) {
    end();
    throw;
  }
  queue_->add(*this);
}

NcclCommunicator::~NcclCommunicator() {
  // Where the run goes on, all members do this and wait for each other. No error may leave.
  if (comm_ != nullptr && !shared_.host.abort_reason()) {
    try {
      NcclQueue* const queue = queue_.get();
      NcclQueue::synchronize({&queue, 1});
      check_nccl(ncclCommFinalize(comm_), "ncclCommFinalize()", comm_);
      settle("the end of a group");
      ncclCommDestroy(comm_);
      comm_ = nullptr;
    } catch (const Error& error) {
      shared_.host.abort(error.message());
    }
  }
  queue_->remove(*this);
  end();
}

// The memory goes last, since to free it is to wait for the device.
void NcclCommunicator::end() {
  NcclCommunicator* const own = this;
  drop({&own, 1});
  cudaFree(word_);
}

// As one group of NCCL: to abort one may mean to wait for the device, on which another still runs.
void NcclCommunicator::drop(std::span<NcclCommunicator* const> groups) {
  ncclGroupStart();
  for (NcclCommunicator* const group : groups) {
    group->queue_->forget(*group);
    if (group->comm_ != nullptr) {
      ncclCommAbort(group->comm_);
      group->comm_ = nullptr;
    }
  }
  ncclGroupEnd();
}

bool NcclCommunicator::is_at_work(const std::string& doing) {
  ncclResult_t state = ncclSuccess;
  check_nccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError()", comm_);
  check_nccl(state, doing, comm_);
  return state == ncclInProgress;
}

// NCCL does in the background what it needs other ranks for: returns when that is done.
void NcclCommunicator::settle(const std::string& doing) {
  const NcclWait wait(shared_);
  while (is_at_work(doing)) {
    wait.pause();
    wait.require_time(doing);
  }
}

template <class Body>
void NcclCommunicator::enqueue(const Call& call, const Body& body) {
  const std::string doing = to_string(call);
  TESSERA_REQUIRE(
      comm_ != nullptr, ErrorCode::kPeerFailure, "{}: the group has failed before", doing);
  check_cuda(cudaSetDevice(shared_.device), "cudaSetDevice()");
  try {
    queue_->begin(*this, call);
    check_nccl(ncclGroupStart(), "ncclGroupStart()", comm_);
    try {
      body(queue_->stream());
    } catch (...) {
      static_cast<void>(ncclGroupEnd());  // what follows stands in no group
      throw;
    }
    check_nccl(ncclGroupEnd(), "ncclGroupEnd()", comm_);
    settle(doing);
    queue_->end();
  } catch (const Error& error) {
    shared_.host.abort(error.message());
    queue_->stop();
    throw;
  }
}

void NcclCommunicator::barrier() {
  enqueue({.operation = Operation::kBarrier}, [&](cudaStream_t stream) {
    check_nccl(ncclAllReduce(word_, word_, 1, ncclInt64, ncclSum, comm_, stream),
               "ncclAllReduce()",
               comm_);
  });
}

void NcclCommunicator::all_gather(std::span<const std::byte> part,
                                  std::span<std::byte> all,
                                  std::size_t stride) {
  const Call call = {.operation = Operation::kAllGather,
                     .bytes = static_cast<std::int64_t>(all.size()),
                     .stride_bytes = static_cast<std::int64_t>(stride)};
  enqueue(call, [&](cudaStream_t stream) {
    if (all.size() == stride * count_of(size_)) {
      check_nccl(ncclAllGather(part.data(), all.data(), stride, ncclUint8, comm_, stream),
                 "ncclAllGather()",
                 comm_);
      return;
    }
    for (std::int64_t root = 0; root < size_; ++root) {
      const Part own = part_of(root, call.stride_bytes, call.bytes);
      std::byte* const place = all.data() + own.begin;
      check_nccl(ncclBroadcast(root == rank_ ? part.data() : place,
                               place,
                               count_of(own.size),
                               ncclUint8,
                               static_cast<int>(root),
                               comm_,
                               stream),
                 "ncclBroadcast()",
                 comm_);
    }
  });
}

void NcclCommunicator::reduce_scatter(Fold fold,
                                      const ConstElements& all,
                                      const Elements& part,
                                      std::int64_t stride) {
  const auto element = static_cast<std::int64_t>(size_bytes(all.dtype));
  const Call call = {.operation = Operation::kReduceScatter,
                     .bytes = all.bytes(),
                     .stride_bytes = stride * element};
  enqueue(call, [&](cudaStream_t stream) {
    if (all.count == stride * size_) {
      check_nccl(ncclReduceScatter(all.data,
                                   part.data,
                                   count_of(stride),
                                   type_of(all.dtype),
                                   fold_of(fold),
                                   comm_,
                                   stream),
                 "ncclReduceScatter()",
                 comm_);
      return;
    }
    for (std::int64_t root = 0; root < size_; ++root) {
      const Part own = part_of(root, stride, all.count);
      check_nccl(ncclReduce(all.data + own.begin * element,
                            part.data,
                            count_of(own.size),
                            type_of(all.dtype),
                            fold_of(fold),
                            static_cast<int>(root),
                            comm_,
                            stream),
                 "ncclReduce()",
                 comm_);
    }
  });
}

void NcclCommunicator::all_reduce(Fold fold, const ConstElements& in, const Elements& out) {
  enqueue({.operation = Operation::kAllReduce, .bytes = in.bytes()}, [&](cudaStream_t stream) {
    check_nccl(
        ncclAllReduce(
            in.data, out.data, count_of(in.count), type_of(in.dtype), fold_of(fold), comm_, stream),
        "ncclAllReduce()",
        comm_);
  });
}

void NcclCommunicator::all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) {
  const std::size_t part = send.size() / count_of(size_);
  enqueue(
      {.operation = Operation::kAllToAll, .bytes = static_cast<std::int64_t>(send.size())},
      [&](cudaStream_t stream) {
        for (std::int64_t peer = 0; peer < size_; ++peer) {
          const std::size_t place = count_of(peer) * part;
          check_nccl(
              ncclSend(send.data() + place, part, ncclUint8, static_cast<int>(peer), comm_, stream),
              "ncclSend()",
              comm_);
          check_nccl(
              ncclRecv(
                  receive.data() + place, part, ncclUint8, static_cast<int>(peer), comm_, stream),
              "ncclRecv()",
              comm_);
        }
      });
}

}  // namespace tessera
