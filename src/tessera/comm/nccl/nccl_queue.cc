#include "tessera/comm/nccl/nccl_queue.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/nccl/nccl_check.h"
#include "tessera/comm/nccl/nccl_communicator.h"
#include "tessera/comm/nccl/progress.h"
#include "tessera/comm/progress.h"

namespace tessera {
namespace {

std::uint32_t begun(std::size_t number) {
  return static_cast<std::uint32_t>(2 * number + 1);
}

std::uint32_t ended(std::size_t number) {
  return static_cast<std::uint32_t>(2 * number + 2);
}

bool is_recording(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing()");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

NcclWait::NcclWait(const NcclRank& rank)
    : rank_(rank), start_(Clock::now()), limit_(rank.options, &rank.host.run_progress()) {}

void NcclWait::require_run() const {
  if (const auto reason = rank_.host.abort_reason()) {
    fail(ErrorCode::kPeerFailure, "{}", *reason);
  }
}

void NcclWait::pause() const {
  rank_.host.exchange_progress();
  require_run();
  constexpr auto kSpin = std::chrono::milliseconds(1);
  if (Clock::now() - start_ > kSpin) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void NcclWait::require_time(const std::string& doing) {
  TESSERA_REQUIRE(!limit_.is_over(),
                  ErrorCode::kTimeout,
                  "{}: no answer within {}; NCCL does not say from whom",
                  doing,
                  rank_.options.patience());
}

NcclQueue::NcclQueue(const NcclRank& rank, cudaStream_t stream) : rank_(rank), stream_(stream) {
  constexpr std::size_t kZeroBytes = sizeof(std::int64_t);
  try {
    check_cuda(cudaMalloc(&zero_, kZeroBytes), "cudaMalloc()");
    check_cuda(cudaMemsetAsync(zero_, 0, kZeroBytes, stream_), "cudaMemsetAsync()");
    check_cuda(cudaHostAlloc(&word_, sizeof *word_, cudaHostAllocMapped), "cudaHostAlloc()");
  } catch (...) {
    cudaFree(zero_);
    throw;
  }
  *word_ = 0;
}

// To free the device's memory is to wait for it, so that it comes when nothing runs any more, and
// before what the device writes to.
NcclQueue::~NcclQueue() {
  cudaFree(zero_);
  cudaFreeHost(word_);
}

std::uint32_t NcclQueue::word() const {
  return std::atomic_ref(*word_).load(std::memory_order_acquire);
}

// Operations that have not ended; more where the word is of a recording, which ran behind them.
std::size_t NcclQueue::num_ahead() const {
  const std::size_t num_ended = std::max<std::size_t>(word() / 2, num_forgotten_);
  return num_ended < operations_.size() ? operations_.size() - num_ended : 0;
}

void NcclQueue::watch_all() {
  if (rank_.queues == nullptr) {
    watch();
    return;
  }
  for (NcclQueue* const queue : *rank_.queues) {
    queue->watch();
  }
}

// What is recorded does not begin.
void NcclQueue::begin(const GroupCall& call) {
  const bool is_recorded = is_recording(stream_);
  // A device takes some hundreds of launches before it blocks who begins more.
  constexpr std::size_t kMostAhead = 16;
  if (!is_recorded) {
    for (const NcclWait wait(rank_); num_ahead() >= kMostAhead && !is_done(); wait.pause()) {
      watch_all();
    }
  }
  operations_.push_back({.call = call, .is_recorded = is_recorded});
  check_cuda(enqueue_store(stream_, word_, begun(operations_.size() - 1)), "a launch");
}

void NcclQueue::end() {
  check_cuda(enqueue_store(stream_, word_, ended(operations_.size() - 1)), "a launch");
}

// What stands before an operation may take as long as it likes.
void NcclQueue::watch() {
  const std::uint32_t now = word();
  if (now != seen_) {
    seen_ = now;
    wait_.reset();
    rank_.host.progress().finish_instruction();  // for ranks that wait for this one's device
  }
  const std::size_t number = now / 2;
  const bool has_begun = now == begun(number);
  const std::string doing = has_begun ? to_string(operations_.at(number).call) : "a collective";
  for (NcclCommunicator* const group : groups_) {
    group->is_at_work(doing);
  }
  if (has_begun) {
    if (!wait_) {
      wait_.emplace(rank_);
    }
    wait_->require_time(doing);
  }
}

bool NcclQueue::is_done() const {
  const cudaError_t state = cudaStreamQuery(stream_);
  if (state == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check_cuda(state, "cudaStreamQuery()");
  return true;
}

// Where the stream is done. Recorded ones keep their numbers.
void NcclQueue::forget_done() {
  while (!operations_.empty() && !operations_.back().is_recorded) {
    operations_.pop_back();
  }
  num_forgotten_ = operations_.size();
  std::atomic_ref(*word_).store(0, std::memory_order_release);
  seen_ = 0;
  wait_.reset();
}

void NcclQueue::watch(const NcclRank& rank,
                      std::span<NcclQueue* const> queues,
                      const std::function<bool()>& is_done) {
  try {
    for (const NcclWait wait(rank);; wait.pause()) {
      for (NcclQueue* const queue : queues) {
        queue->watch();
      }
      if (is_done()) {
        wait.require_run();  // whoever gave up before this was done, gave it up for all
        return;
      }
    }
  } catch (const Error& error) {
    rank.host.abort(error.message());
    stop(queues);
    throw;
  }
}

void NcclQueue::synchronize(std::span<NcclQueue* const> queues) {
  const NcclRank& rank = queues.front()->rank_;
  check_cuda(cudaSetDevice(rank.device), "cudaSetDevice()");
  watch(rank, queues, [&] { return std::ranges::all_of(queues, &NcclQueue::is_done); });
  for (NcclQueue* const queue : queues) {
    queue->forget_done();
  }
}

void NcclQueue::stop(std::span<NcclQueue* const> queues) {
  if (!queues.empty() && queues.front()->rank_.drop_recordings) {
    queues.front()->rank_.drop_recordings();
  }
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

}  // namespace tessera
