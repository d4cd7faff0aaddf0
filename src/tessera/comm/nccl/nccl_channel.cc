#include "tessera/comm/nccl/nccl_channel.h"

#include <utility>

namespace tessera {

// NCCL connects two ranks at the first transfer, for which the host waits at both ends: here, where
// all ranks make their channels in one order, and not in a step.
NcclChannel::NcclChannel(std::unique_ptr<NcclCommunicator> group, std::span<std::byte> scratch)
    : group_(std::move(group)) {
  begin(scratch);
}

void NcclChannel::begin(std::span<std::byte> memory) {
  constexpr std::int64_t kSender = 0;
  constexpr std::int64_t kReceiver = 1;
  if (group_->rank() == kSender) {
    group_->send(memory, kReceiver);
  } else {
    group_->receive(memory, kSender);
  }
}

}  // namespace tessera
