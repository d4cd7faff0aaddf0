#include "tessera/backend/cuda/device/streams.h"

namespace tessera::cuda {
namespace {

cudaEvent_t create_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags()");
  return event;
}

}  // namespace

cudaStream_t create_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags()");
  return stream;
}

cudaStream_t create_urgent_stream() {
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange()");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
        "cudaStreamCreateWithPriority()");
  return stream;
}

Event::Event() : event_(create_event()) {}

void Event::mark(cudaStream_t stream) {
  check(cudaEventRecord(event_.get(), stream), "cudaEventRecord()");
}

void Event::hold(cudaStream_t stream) const {
  check(cudaStreamWaitEvent(stream, event_.get(), 0), "cudaStreamWaitEvent()");
}

bool Event::is_done() const {
  const cudaError_t state = cudaEventQuery(event_.get());
  if (state == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check(state, "cudaEventQuery()");
  return true;
}

void HandOvers::mark(cudaStream_t stream) {
  const std::size_t next = (last_.load(std::memory_order_relaxed) + 1) % kEvents;
  events_[next].mark(stream);
  last_.store(next, std::memory_order_release);
}

void Signals::mark(std::size_t number, cudaStream_t stream) {
  while (events_.size() <= number) {
    events_.emplace_back();
  }
  events_[number].mark(stream);
  is_known_.resize(events_.size(), false);
  is_known_[number] = true;
}

void Signals::hold(std::size_t number, cudaStream_t stream) const {
  if (number < is_known_.size() && is_known_[number]) {
    events_[number].hold(stream);
  }
}

void Signals::forget() {
  is_known_.assign(is_known_.size(), false);
}

}  // namespace tessera::cuda
