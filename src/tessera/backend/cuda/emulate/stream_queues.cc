#include "tessera/backend/cuda/emulate/stream_queues.h"

#include "tessera/base/error.h"

namespace tessera::cuda {

void StreamQueues::give(std::size_t stream, const Work& work) {
  given_.at(stream).push_back({.work = work});
}

StreamQueues::Work StreamQueues::signal(std::size_t number) {
  signals_[number] = ++num_signals_;
  return [this, signal = num_signals_] { done_signals_.insert(signal); };
}

void StreamQueues::wait(std::size_t number, std::size_t stream) {
  if (const auto found = signals_.find(number); found != signals_.end()) {
    given_.at(stream).push_back({.work = nullptr, .signal = found->second});
  }
}

void StreamQueues::forget_signals() {
  signals_.clear();
}

bool StreamQueues::advance(std::deque<Given>& stream) {
  if (stream.empty()) {
    return false;
  }
  const Given next = stream.front();
  if (!next.work && !done_signals_.contains(next.signal)) {
    return false;
  }
  if (next.work) {
    next.work();
  }
  stream.pop_front();
  return true;
}

void StreamQueues::work_off() {
  std::deque<Given>& early = given_.at(num_worked_off_ % 2);
  std::deque<Given>& late = given_.at((num_worked_off_ + 1) % 2);
  if (early.empty() && late.empty()) {
    return;
  }
  ++num_worked_off_;
  try {
    while (advance(early) || advance(late)) {
    }
    TESSERA_CHECK(early.empty() && late.empty(), "streams that wait for each other");
  } catch (...) {
    early.clear();
    late.clear();
    throw;
  }
}

}  // namespace tessera::cuda
