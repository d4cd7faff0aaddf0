#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tessera/comm/agreement.h"
#include "tessera/comm/mpi/mpi_run.h"
#include "tessera/comm/mpi/requests.h"

namespace tessera {

// One member's messages with its peers, each of which is named by its place in the group, and what
// becomes of those that do not come.
class MpiGroup {
 public:
  MpiGroup(std::shared_ptr<MpiRun> run,
           std::span<const std::int64_t> members,
           std::int64_t generation);
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  std::size_t own() const { return own_; }

  std::size_t size() const { return members_.size(); }

  MpiRun& run() const { return *run_; }

  template <class Body>
  void for_each_peer(const Body& body) const {
    for (std::size_t i = 1; i < members_.size(); ++i) {
      body((own_ + i) % members_.size());
    }
  }

  // This rank begins an operation, which errors name from now on. Before the first it waits until
  // every peer has told its tag. Errors: kTimeout, kPeerFailure.
  void begin(const GroupCall& call);

  // Errors: kInternal where the peer does something else.
  void compare(std::size_t peer, const GroupCall& other);

  // Nothing where there is nothing to send or receive.
  void post_receive(Requests& requests, std::size_t peer, std::span<std::byte> to) const;
  void post_send(Requests& requests, std::size_t peer, std::span<const std::byte> from) const;

  // Returns when all are done. Errors: kTimeout, kPeerFailure.
  void wait(Requests& requests);

  // Errors: kPeerFailure.
  void leave_if_aborted() const;

 private:
  using IsMissing = std::function<bool(std::size_t peer)>;

  struct Attendance {
    std::vector<std::int64_t> arrived;
    std::vector<std::int64_t> missing;
  };

  void meet();
  void leave_if_aborted(const IsMissing& is_missing) const;
  Attendance attendance(const IsMissing& is_missing) const;
  [[noreturn]] void fail_late(const IsMissing& is_missing);

  std::shared_ptr<MpiRun> run_;
  std::vector<std::int64_t> members_;
  std::size_t own_;
  MpiRun::Ticket ticket_;
  std::vector<int> tags_;  // by member; empty before the first operation
  GroupCall call_;         // under way
};

}  // namespace tessera
