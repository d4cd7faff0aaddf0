#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "tessera/comm/channel.h"
#include "tessera/comm/nccl/nccl_communicator.h"

namespace tessera {

// A rank's end of a channel of NCCL: a group of two. A transfer is enqueued, and done for the host.
// Sizes are not compared: ends that differ run into the deadline.
class NcclChannel final : public Channel {
 public:
  // `group` is of the sender and the receiver, in this order. Connects them by a transfer of
  // `scratch`, of one size at both ends, and waits for that.
  // Errors: those of an operation of the group.
  NcclChannel(std::unique_ptr<NcclCommunicator> group, std::span<std::byte> scratch);

  void begin(std::span<std::byte> memory) override;

  bool advance() override { return true; }

  // What is enqueued ends with the run (NcclWorld::stop()).
  void withdraw() override {}

 private:
  std::unique_ptr<NcclCommunicator> group_;
};

}  // namespace tessera
