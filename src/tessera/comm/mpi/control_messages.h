#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include <mpi.h>

namespace tessera {

// Messages outside all groups, from any rank to any other, for which nobody waits. Used from
// several threads.
class ControlMessages {
 public:
  // Takes the communicator over, until finalize().
  explicit ControlMessages(MPI_Comm comm) : comm_(comm) {}

  struct Message {
    std::int64_t peer = 0;  // that it goes to, or comes from
    int kind = 0;
    std::vector<std::byte> bytes = {};
  };

  void send(Message message);

  // The next that has arrived. One thread at a time.
  std::optional<Message> take();

  // Whether MPI is done with all that were sent. What cannot be sent, to a peer that is gone, is
  // not under way either.
  bool are_sent();

  // Returns when all are sent; nothing of this object is used after it.
  void finalize();

 private:
  // One that MPI may still be sending.
  struct Outgoing {
    std::vector<std::byte> bytes;
    MPI_Request request = MPI_REQUEST_NULL;

    bool is_done();
  };

  MPI_Comm comm_;
  std::mutex mutex_;  // guards what follows
  std::list<Outgoing> outgoing_;
};

}  // namespace tessera
