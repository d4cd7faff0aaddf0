#include "tessera/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>
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

}  // namespace

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
  if (comm_ != nullptr && std::uncaught_exceptions() == 0 && !shared_.host.abort_reason()) {
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

void NcclCommunicator::end() {
  NcclCommunicator* const own = this;
  drop({&own, 1});
}

// As one group of NCCL: to abort one may mean to wait for the device, on which another still runs.
void NcclCommunicator::drop(std::span<NcclCommunicator* const> groups) {
  ncclGroupStart();
  for (NcclCommunicator* const group : groups) {
    if (group->comm_ != nullptr) {
      ncclCommAbort(group->comm_);
      group->comm_ = nullptr;
    }
  }
  ncclGroupEnd();
}

void NcclCommunicator::require_alive(const std::string& doing) const {
  TESSERA_REQUIRE(
      comm_ != nullptr, ErrorCode::kPeerFailure, "{}: the group has failed before", doing);
}

bool NcclCommunicator::is_at_work(const std::string& doing) {
  require_alive(doing);
  ncclResult_t state = ncclSuccess;
  check_nccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError()", comm_);
  check_nccl(state, doing, comm_);
  return state == ncclInProgress;
}

// NCCL does in the background what it needs other ranks for: returns when that is done.
void NcclCommunicator::settle(const std::string& doing) {
  NcclWait wait(shared_);
  while (is_at_work(doing)) {
    wait.pause();
    wait.require_time(doing);
  }
}

template <class Body>
void NcclCommunicator::enqueue(const GroupCall& call, const Body& body) {
  const std::string doing = to_string(call);
  require_alive(doing);
  check_cuda(cudaSetDevice(shared_.device), "cudaSetDevice()");
  try {
    queue_->begin(call);
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
    check_nccl(ncclAllReduce(queue_->zero(), queue_->zero(), 1, ncclInt64, ncclSum, comm_, stream),
               "ncclAllReduce()",
               comm_);
  });
}

void NcclCommunicator::all_gather(std::span<const std::byte> part,
                                  std::span<std::byte> all,
                                  std::size_t stride) {
  const GroupCall call = {.operation = Operation::kAllGather,
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
  const GroupCall call = {.operation = Operation::kReduceScatter,
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

void NcclCommunicator::ring_shift(std::span<const std::byte> send, std::span<std::byte> receive) {
  enqueue({.operation = Operation::kRingShift, .bytes = static_cast<std::int64_t>(send.size())},
          [&](cudaStream_t stream) {
            const auto to = static_cast<int>(after_in_ring(rank_, size_));
            const auto from = static_cast<int>(before_in_ring(rank_, size_));
            check_nccl(ncclSend(send.data(), send.size(), ncclUint8, to, comm_, stream),
                       "ncclSend()",
                       comm_);
            check_nccl(ncclRecv(receive.data(), receive.size(), ncclUint8, from, comm_, stream),
                       "ncclRecv()",
                       comm_);
          });
}

void NcclCommunicator::send(std::span<const std::byte> memory, std::int64_t peer) {
  enqueue({.operation = Operation::kSend, .bytes = static_cast<std::int64_t>(memory.size())},
          [&](cudaStream_t stream) {
            check_nccl(
                ncclSend(
                    memory.data(), memory.size(), ncclUint8, static_cast<int>(peer), comm_, stream),
                "ncclSend()",
                comm_);
          });
}

void NcclCommunicator::receive(std::span<std::byte> memory, std::int64_t peer) {
  enqueue({.operation = Operation::kReceive, .bytes = static_cast<std::int64_t>(memory.size())},
          [&](cudaStream_t stream) {
            check_nccl(
                ncclRecv(
                    memory.data(), memory.size(), ncclUint8, static_cast<int>(peer), comm_, stream),
                "ncclRecv()",
                comm_);
          });
}

}  // namespace tessera
