#include "tessera/backend/cuda/emulate/stream_queues.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::cuda {

std::deque<StreamQueues::Given>& StreamQueues::stream(std::size_t number) {
  given_.resize(std::max(given_.size(), number + 1));
  return given_[number];
}

void StreamQueues::give(std::size_t stream, const Work& work) {
  this->stream(stream).push_back({.work = work});
}

void StreamQueues::launch(std::size_t stream, const Work& work) {
  this->stream(stream).push_back({.work = work, .launch = num_launches_++});
}

StreamQueues::Work StreamQueues::signal(std::size_t number) {
  signals_[number] = ++num_signals_;
  return [this, signal = num_signals_] { done_signals_.insert(signal); };
}

void StreamQueues::wait(std::size_t number, std::size_t stream) {
  if (const auto found = signals_.find(number); found != signals_.end()) {
    this->stream(stream).push_back({.signal = found->second});
  }
}

void StreamQueues::forget_signals() {
  signals_.clear();
}

bool StreamQueues::is_done() const {
  return std::ranges::all_of(given_, [](const auto& stream) { return stream.empty(); });
}

void StreamQueues::drop() {
  for (std::deque<Given>& stream : given_) {
    stream.clear();
  }
  num_launched_ = num_launches_;
}

bool StreamQueues::advance(std::deque<Given>& stream) {
  if (stream.empty()) {
    return false;
  }
  const Given next = stream.front();
  if (next.work ? next.launch.value_or(num_launched_) != num_launched_
                : !done_signals_.contains(next.signal)) {
    return false;
  }
  if (next.work) {
    next.work();
  }
  if (next.launch) {
    ++num_launched_;
  }
  stream.pop_front();
  return true;
}

bool StreamQueues::advance_any(std::size_t first) {
  for (std::size_t i = 0; i < given_.size(); ++i) {
    if (advance(given_[(first + i) % given_.size()])) {
      return true;
    }
  }
  return false;
}

void StreamQueues::work_off() {
  if (is_done()) {
    return;
  }
  const std::size_t first = num_worked_off_++;
  try {
    while (advance_any(first)) {
    }
    TESSERA_CHECK(is_done(), "streams that wait for each other");
  } catch (...) {
    drop();
    throw;
  }
}

}  // namespace tessera::cuda
