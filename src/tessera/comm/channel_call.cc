#include "tessera/comm/channel_call.h"

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera {

void require_channel_of(const ChannelKey& channel, std::int64_t rank, std::int64_t num_ranks) {
  const auto is_rank = [&](std::int64_t each) { return each >= 0 && each < num_ranks; };
  TESSERA_REQUIRE(is_rank(channel.from) && is_rank(channel.to) && channel.from != channel.to,
                  ErrorCode::kInvalidArgument,
                  "a channel from rank {} to rank {}: expected two ranks of [0, {})",
                  channel.from,
                  channel.to,
                  num_ranks);
  TESSERA_REQUIRE(rank == channel.from || rank == channel.to,
                  ErrorCode::kInvalidArgument,
                  "a channel from rank {} to rank {}: expected rank {} to be one of them",
                  channel.from,
                  channel.to,
                  rank);
}

std::string waiting_message(const ChannelCall& call,
                            std::string_view own_place,
                            std::string_view peer_place) {
  return format("rank {} waits {} to {} rank {}, which is {}: transfer {} of channel {}, {} bytes",
                call.rank(),
                own_place,
                call.sends ? "send to" : "receive from",
                call.peer(),
                peer_place,
                call.transfer,
                call.channel.number,
                call.bytes);
}

std::string late_message(const ChannelCall& call,
                         const WorldOptions& options,
                         std::string_view own_place,
                         std::string_view peer_place) {
  return format(
      "{}: no answer within {}", waiting_message(call, own_place, peer_place), options.patience());
}

std::string mismatch_message(const ChannelCall& call, std::int64_t sent_bytes) {
  return format("rank {} sends {} bytes, rank {} receives {}: transfer {} of channel {}",
                call.channel.from,
                sent_bytes,
                call.channel.to,
                call.bytes,
                call.transfer,
                call.channel.number);
}

}  // namespace tessera
