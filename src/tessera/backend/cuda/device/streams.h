#pragma once

// Streams of the calling thread's device, and what of one waits for another.

#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <vector>

#include <cuda_runtime_api.h>

#include "tessera/backend/cuda/device/check.h"

namespace tessera::cuda {

using Stream = Handle<cudaStream_t, cudaStreamDestroy>;

cudaStream_t create_stream();

// One whose kernels go before those of others that have yet to begin: collectives, for which other
// ranks wait, take few multiprocessors each.
cudaStream_t create_urgent_stream();

// A point of a stream. One that was never marked counts as reached.
class Event {
 public:
  Event();

  // After all that the stream has been given.
  void mark(cudaStream_t stream);

  // What the stream is given from now on begins when the point is reached.
  void hold(cudaStream_t stream) const;

  bool is_done() const;

 private:
  Handle<cudaEvent_t, cudaEventDestroy> event_;
};

// Points of one stream that work of other threads comes after. One thread marks them.
class HandOvers {
 public:
  // After all that the stream has been given.
  void mark(cudaStream_t stream);

  // The last one, or a later one where many are marked since. Any thread may ask.
  const Event& last() const { return events_[last_.load(std::memory_order_acquire)]; }

 private:
  static constexpr std::size_t kEvents = 64;

  std::array<Event, kEvents> events_;  // in turn
  std::atomic<std::size_t> last_ = 0;
};

// Events by number, as Backend::signal() and wait() have them.
class Signals {
 public:
  void mark(std::size_t number, cudaStream_t stream);

  // Holds the stream, unless nothing has the number.
  void hold(std::size_t number, cudaStream_t stream) const;

  void forget();

 private:
  std::deque<Event> events_;    // by number
  std::vector<bool> is_known_;  // by number: whether what waits for it finds it
};

}  // namespace tessera::cuda
