#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <thread>

#include "tessera/runtime/lane.h"

namespace tessera {

// A thread that works off a lane's items.
class StreamThread {
 public:
  // `work(i, step)` runs item i of num_items of a step, which are counted from 0 and wrap around
  // with the tickets. An exception that leaves it fails the lane and ends the thread, after
  // `note(exception)`. Borrows the lane.
  using Note = std::function<void(const std::exception_ptr& error)>;
  using Work = std::function<void(std::size_t item, Lane::Ticket step)>;

  StreamThread(Lane& lane, std::size_t num_items, Work work, Note note = nullptr);

  // Stops the lane, then waits for the item that runs.
  ~StreamThread();

  StreamThread(const StreamThread&) = delete;
  StreamThread& operator=(const StreamThread&) = delete;

 private:
  void loop(std::size_t num_items, const Work& work, const Note& note);

  Lane& lane_;
  std::jthread thread_;
};

}  // namespace tessera
