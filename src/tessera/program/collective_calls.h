#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/axes.h"
#include "tessera/program/program.h"

namespace tessera {

// The end of a channel that a transfer goes through.
struct ChannelEnd {
  AxisSizes axes;  // along which its places are
  ChannelPlaces places;
  bool sends = false;  // or receives

  friend bool operator==(const ChannelEnd&, const ChannelEnd&) = default;
};

// One collective of a rank's step along one mesh axis, or a transfer of two ranks, which both ends
// do in a call of one microbatch. Ranks of a group
// match where stream, axis and `what` are equal; the ends of a channel, whatever their streams,
// where `what` is.
struct CollectiveCall {
  std::size_t stream = 0;  // index in the sequence's streams; each has communicators of its own
  std::string axis;        // none of a transfer
  std::optional<ChannelEnd> channel = std::nullopt;  // of a transfer
  std::string what;  // kind, fold, dtype, sizes, and of what: buffers, microbatch
  std::vector<std::size_t> after =
      {};                  // by stream, how many of its calls end before this one begins
  std::string place = {};  // "segment forward, microbatch 0, instruction 3: all_reduce"

  friend bool operator==(const CollectiveCall&, const CollectiveCall&) = default;
};

// What a rank's step does with other ranks, in the order of the program.
struct CollectiveSequence {
  std::vector<std::string> streams;
  std::vector<CollectiveCall> calls;

  friend bool operator==(const CollectiveSequence&, const CollectiveSequence&) = default;
};

// The collectives of the step. One over several axes is a call along each: from the innermost
// outwards where it reduces, back inwards where it gathers. The order of streams is what the
// executor keeps: a stream goes as far as stream 0 has come, and waits are for events.
CollectiveSequence collective_calls(const Program& program);

// The same where none begins before the one that was issued before it has ended, on whatever
// stream: so it is at worst where a device has one queue for what all of its streams launch.
CollectiveSequence in_one_queue(CollectiveSequence sequence);

// A line a call, which parse_collective_calls() reads back.
std::string to_string(const CollectiveSequence& sequence);

// Errors: kInternal quoting the line.
CollectiveSequence parse_collective_calls(std::string_view text);

}  // namespace tessera
