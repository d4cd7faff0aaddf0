#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "tessera/comm/mpi/backoff.h"

namespace tessera {

// Messages under way, each with a peer.
class Requests {
 public:
  enum class Kind : std::uint8_t { kSend, kReceive };

  Requests() = default;
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  // Takes back the receives that an error has left, so that nobody writes into memory that the
  // caller will free. Those that have begun get a while to end; sends stay, since MPI cannot take
  // them back.
  ~Requests();

  // Where MPI puts the handle of a new message.
  MPI_Request* add(std::size_t peer, Kind kind);

  // Whether all are done; `some` becomes true where any has been since the last call.
  bool test(bool& some);

  bool waits_for(std::size_t peer) const;

 private:
  struct Message {
    std::size_t peer;
    Kind kind;
  };

  void withdraw(Backoff backoff);

  // Whether any message for which `condition` holds is not done.
  template <class Condition>
  bool any(const Condition& condition) const {
    for (std::size_t i = 0; i < handles_.size(); ++i) {
      if (handles_[i] != MPI_REQUEST_NULL && condition(messages_[i])) {
        return true;
      }
    }
    return false;
  }

  std::vector<MPI_Request> handles_;
  std::vector<Message> messages_;
  std::vector<int> done_;
};

}  // namespace tessera
