#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/comm/channel.h"

namespace tessera {

struct WorldOptions;

// What an end of a channel is at. All kinds of channels check and report it alike.
struct ChannelCall {
  ChannelKey channel;
  bool sends = false;         // at the sender's end
  std::int64_t transfer = 0;  // counted from 0
  std::int64_t bytes = 0;

  std::int64_t rank() const { return sends ? channel.from : channel.to; }

  std::int64_t peer() const { return sends ? channel.to : channel.from; }
};

// Errors: kInvalidArgument unless the channel joins two distinct ranks of [0, num_ranks), `rank`
// being one of them.
void require_channel_of(const ChannelKey& channel, std::int64_t rank, std::int64_t num_ranks);

// "rank 2 waits at call 14 (F of microbatch 5) to receive from rank 1, which is at call 9 (B of
// microbatch 0): transfer 3 of channel 0, 96 bytes". Places as of Progress::place().
std::string waiting_message(const ChannelCall& call,
                            std::string_view own_place,
                            std::string_view peer_place);

// The same of a wait that has lasted for too long.
std::string late_message(const ChannelCall& call,
                         const WorldOptions& options,
                         std::string_view own_place,
                         std::string_view peer_place);

// "rank 1 sends 8 bytes, rank 2 receives 16: transfer 3 of channel 0", for the receiver's call.
std::string mismatch_message(const ChannelCall& call, std::int64_t sent_bytes);

}  // namespace tessera
