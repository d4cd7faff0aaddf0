#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/dtype.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/layout.h"
#include "tessera/ops/op.h"
#include "tessera/program/program.h"

namespace tessera {

// The end of a channel that a transfer goes through.
struct ChannelEnd {
  AxisSizes axes;  // along which its places are
  ChannelPlaces places;
  bool sends = false;  // or receives

  friend bool operator==(const ChannelEnd&, const ChannelEnd&) = default;
};

// What ranks do together in a call: equal at all of them.
struct CollectiveWork {
  CollectiveKind kind = CollectiveKind::kAllReduce;  // kSend at both ends of a transfer
  std::optional<PartialOp> fold = std::nullopt;
  DType dtype = DType::kF32;
  std::int64_t bytes = 0;  // as in CollectiveUse
  std::int64_t count = 0;
  std::int64_t sent = 0;   // by a rank along the axis, for one of them; of no transfer
  std::int64_t ranks = 0;  // of the axis; of no transfer
  std::int64_t index = 0;  // of a transfer alone, as in CollectiveUse
  std::int32_t microbatch = 0;
  std::string of = {};  // "\"w0\"", "operand 0 of mul", "output \"loss\""; of no transfer

  friend auto operator<=>(const CollectiveWork&, const CollectiveWork&) = default;
};

// "all_gather of 1024 bytes f32 over 2 ranks, 512 sent, 1 times, of \"w0\" in microbatch 0",
// "transfer 0 of 64 bytes bf16 in microbatch 1".
std::string to_string(const CollectiveWork& work);

// One collective of a rank's step along one mesh axis, or a transfer of two ranks, which both ends
// do in a call of one microbatch. Ranks of a group match where stream, axis and `what` are equal;
// the ends of a channel, whatever their streams, where `what` is.
struct CollectiveCall {
  std::size_t stream = 0;  // index in the sequence's streams; each has communicators of its own
  std::string axis;        // none of a transfer
  std::optional<ChannelEnd> channel = std::nullopt;  // of a transfer
  CollectiveWork what;
  std::vector<std::size_t> after =
      {};                  // by stream, how many of its calls end before this one begins
  std::string place = {};  // "segment forward, microbatch 0, instruction 3: all_reduce"
  std::uint32_t step = 0;  // in issue_order(), of its rank
  std::uint32_t use = 0;   // of the step's collectives()
  std::uint32_t leg = 0;   // of the use's legs() (ops/collective_legs.h)

  friend bool operator==(const CollectiveCall&, const CollectiveCall&) = default;
};

// What a rank's step does with other ranks, in the order of the program.
struct CollectiveSequence {
  std::vector<std::string> streams;
  std::vector<CollectiveCall> calls;

  friend bool operator==(const CollectiveSequence&, const CollectiveSequence&) = default;
};

// Those of an instruction of a segment in any of its calls, of which the stream, what comes before
// and the place are not said.
std::vector<CollectiveCall> instruction_calls(const Program& program,
                                              const Segment& segment,
                                              std::size_t index);

// The collectives of the step. One over several axes is a call along each of its legs().
// The order of streams is that of issue_order().
CollectiveSequence collective_calls(const Program& program);

// The same where none begins before the one that was issued before it has ended, on whatever
// stream: so it is at worst where a device has one queue for what all of its streams launch.
CollectiveSequence in_one_queue(CollectiveSequence sequence);

// A line a call, which parse_collective_calls() reads back.
std::string to_string(const CollectiveSequence& sequence);

// Errors: kInternal quoting the line.
CollectiveSequence parse_collective_calls(std::string_view text);

}  // namespace tessera
