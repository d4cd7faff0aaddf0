#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <mpi.h>

#include "tessera/comm/bell.h"
#include "tessera/comm/channel.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/mpi/backoff.h"
#include "tessera/comm/mpi/control_messages.h"
#include "tessera/comm/mpi/gossip.h"
#include "tessera/comm/mpi/group_tags.h"
#include "tessera/comm/mpi/mpi_launch.h"

namespace tessera {

// What all communicators and channels of this process share: MPI itself, their tags, and the
// control messages, by which ranks learn each other's tags, how far others have come, and that the
// run is aborted. Used from several threads.
class MpiRun {
 public:
  // Starts MPI. Errors: as join_mpi_world().
  MpiRun(const MpiLaunch& launch, const WorldOptions& options);

  std::int64_t rank() const { return rank_; }

  std::int64_t size() const { return size_; }

  const WorldOptions& options() const { return options_; }

  Backoff backoff() const { return {options_, oversubscribed_, &gossip_}; }

  Bell& bell() { return bell_; }

  Gossip& gossip() { return gossip_; }

  const Gossip& gossip() const { return gossip_; }

  MPI_Comm data() const { return data_; }

  using Ticket = GroupTags::Ticket;

  // Tells the other members under which tag this rank receives. Errors: those of GroupTags.
  Ticket announce(std::span<const std::int64_t> members, std::int64_t generation);
  Ticket announce(const ChannelKey& channel, std::int64_t generation);
  void retire(const Ticket& ticket);

  // The tag under which `peer` receives for the group, once it has announced it.
  std::optional<int> tag_of(const Ticket& ticket, std::int64_t peer) {
    return tags_.tag_of(ticket, peer);
  }

  // Takes in what others have announced; waits for nothing.
  void take_control_messages();

  // The same; and tells the peers of this rank's channels how far it has come.
  void exchange_progress();

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
  void tell(const Ticket& ticket, std::int64_t peer);
  bool take_one_control_message();
  void send(const Gossip::News& news);
  void end_with(std::string_view reason);

  WorldOptions options_;
  bool oversubscribed_;
  MPI_Comm data_;
  ControlMessages control_;
  std::int64_t rank_;
  std::int64_t size_;
  GroupTags tags_;
  Bell bell_;
  Gossip gossip_;
  std::atomic<bool> aborted_ = false;

  std::mutex receiving_;  // held by the one thread that takes in control messages
  std::mutex mutex_;      // guards what follows; taken after receiving_
  std::string reason_;
  std::vector<std::vector<std::byte>> kept_;
};

// This rank's end of a channel; checks the key.
std::unique_ptr<Channel> make_mpi_channel(std::shared_ptr<MpiRun> run,
                                          const ChannelKey& key,
                                          std::int64_t generation);

// This rank's end of a group; checks the members.
std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiRun> run,
                                                    std::span<const std::int64_t> members,
                                                    std::int64_t generation);

}  // namespace tessera
