#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "tessera/comm/channel.h"
#include "tessera/comm/local/local_run.h"
#include "tessera/comm/local/pace.h"
#include "tessera/comm/mover.h"

namespace tessera {

// What the two ends of a channel share: the sender shows its memory, the receiver copies from it.
struct LocalConnection {
  LocalConnection(std::shared_ptr<LocalRun> run_of_all, const ChannelKey& channel_key);

  std::shared_ptr<LocalRun> run;  // of all groups and channels
  ChannelKey key;
  std::optional<Pace> pace;

  // What the sender writes: a transfer before it raises `shown`, and not again before that many are
  // taken.
  struct alignas(64) Sender {
    std::span<const std::byte> memory;
    Channel::Clock::time_point begun;     // where the run is throttled
    std::atomic<std::int64_t> shown = 0;  // transfers
    std::atomic<bool> withdrawn = false;  // this end is gone
  };

  // What the receiver writes.
  struct alignas(64) Receiver {
    std::atomic<std::int64_t> taken = 0;   // transfers
    std::atomic<std::int64_t> copied = 0;  // those, and one that has yet to keep its pace
    std::atomic<bool> reading = false;     // it may be reading the sender's memory
  };

  Sender sender;
  Receiver receiver;
};

// The end of `rank`, which is one of the two. Borrows the mover.
std::unique_ptr<Channel> make_local_channel(std::shared_ptr<LocalConnection> connection,
                                            std::int64_t rank,
                                            const Mover& mover);

}  // namespace tessera
