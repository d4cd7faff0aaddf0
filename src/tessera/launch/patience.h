#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tessera/comm/communicator.h"

namespace tessera {

// While one lives, the ranks of a group wait for each other however long it takes, since each tells
// the others ten times a second that it is still at it: for what waits for disks, which are not
// alike. Every rank makes one at the same point of its program, does its part on the same thread
// and without talking in the group, and calls wait(). The ranks that are done wait there; what a
// collective would wait for has then come.
class Patience {
 public:
  // `doing` is what a rank is late with: "rank 3 is still <doing> after 20 s".
  Patience(Communicator& group, std::string doing, double limit_seconds);

  // Where wait() was not reached, an error is on its way: the others hear of it by the world.
  ~Patience();
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

  // Until all ranks call it. Errors: kTimeout naming a rank that has not within `limit_seconds`; as
  // Communicator's operations where one has failed.
  void wait();

 private:
  enum class State { kAtIt, kDone, kGivenUp };

  void tell();
  void become(State state);

  Communicator& group_;
  std::string doing_;
  double limit_seconds_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  State state_ = State::kAtIt;

  std::exception_ptr failure_;         // of tell()
  std::optional<std::thread> thread_;  // that runs it; none: wait() does
};

}  // namespace tessera
