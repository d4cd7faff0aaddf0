#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <mpi.h>

#include "tessera/comm/communicator.h"
#include "tessera/comm/mpi/mpi_launch.h"

namespace tessera {

// Throws kPeerFailure with MPI's own words unless `result` is MPI_SUCCESS.
void check_mpi(int result, const char* function);

// How a rank waits: spins, gives its core away, then sleeps in short steps, which grow up to half a
// millisecond; all until something happens or the deadline has passed.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  Patience(const WorldOptions& options, bool oversubscribed);

  // Something happened: the deadline and the steps start anew.
  void renew();

  // One step; false once the deadline has passed.
  bool pause();

 private:
  WorldOptions options_;
  bool oversubscribed_;
  std::int64_t steps_ = 0;
  Clock::time_point start_;
};

// What all communicators of this process share: MPI itself, the tags of groups, and the control
// messages, by which ranks learn each other's tags and that the run is aborted.
//
// A group has no MPI communicator of its own, since making one waits for every member without a
// deadline. Each member chooses a tag under which it receives for the group, unique among its
// own, and announces it to the others. Used from several threads.
class MpiRun {
 public:
  // Starts MPI. Errors: as join_mpi_world().
  MpiRun(const MpiLaunch& launch, const WorldOptions& options);

  std::int64_t rank() const { return rank_; }

  std::int64_t size() const { return size_; }

  const WorldOptions& options() const { return options_; }

  Patience patience() const { return {options_, oversubscribed_}; }

  MPI_Comm data() const { return data_; }

  // A group of which this rank is a member, from announce() to retire().
  struct Ticket {
    std::uint64_t key = 0;  // equal on all members
    int tag = 0;            // under which this rank receives
  };

  Ticket announce(std::span<const std::int64_t> members, std::int64_t generation);
  void retire(const Ticket& ticket);

  // The tag under which `peer` receives for the group, once it has announced it.
  std::optional<int> tag_of(const Ticket& ticket, std::int64_t peer);

  // Takes in what others have announced; waits for nothing.
  void take_control_messages();

  bool aborted() const { return aborted_; }

  std::string abort_reason();

  // Tells every rank; waits for at most a second until the messages are on their way. Throws
  // nothing: an error led to it.
  void abort(std::string_view reason);

  // Keeps memory, which MPI may still be reading, until the process ends.
  void keep(std::vector<std::byte> memory);

  // Ends MPI on ranks that have all been told to: nothing of this object is used after it.
  void finalize();

 private:
  // A control message that MPI may still be sending.
  struct Outgoing {
    std::vector<std::byte> bytes;
    MPI_Request request = MPI_REQUEST_NULL;

    bool is_done();
  };

  void send_control(std::int64_t peer, int kind, std::vector<std::byte> bytes);
  bool take_one_control_message();
  void end_with(std::string_view reason);

  WorldOptions options_;
  std::int64_t rank_ = 0;
  std::int64_t size_ = 1;
  bool oversubscribed_ = false;
  std::int64_t last_tag_ = 0;  // that MPI allows
  MPI_Comm data_ = MPI_COMM_NULL;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::atomic<bool> aborted_ = false;

  std::mutex receiving_;  // held by the one thread that takes in control messages
  std::mutex mutex_;      // guards what follows; taken after receiving_
  std::string reason_;
  std::list<Outgoing> outgoing_;
  std::vector<std::vector<std::byte>> kept_;
  int next_tag_ = 0;
  std::vector<int> free_tags_;
  // How often this rank made a group of these members and generation: the next is another one.
  std::map<std::pair<std::vector<std::int64_t>, std::int64_t>, std::int64_t> made_;
  std::map<std::pair<std::uint64_t, std::int64_t>, int> tags_;  // by group's key and peer
};

// This rank's end of a group; checks the members.
std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiRun> run,
                                                    std::span<const std::int64_t> members,
                                                    std::int64_t generation);

}  // namespace tessera
