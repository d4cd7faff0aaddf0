#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct WorldOptions;

// What every kind of communicator cuts, checks and says alike, so that results and errors do not
// depend on how ranks talk.

enum class Operation : std::uint8_t {
  kBarrier,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kRingShift,
  kSend,  // of a channel that a communicator of two carries
  kReceive,
};

std::string_view name(Operation operation);

// What a member is about to do, for the others to compare with.
struct GroupCall {
  Operation operation = Operation::kBarrier;
  std::int64_t bytes = 0;         // of all parts
  std::int64_t stride_bytes = 0;  // between parts, where the caller chooses it

  friend bool operator==(const GroupCall&, const GroupCall&) = default;
};

// "all_gather of 96 bytes in parts of 32".
std::string to_string(const GroupCall& call);

// The place of `rank` among the members of a group. Errors: kInvalidArgument unless the members are
// distinct ranks of [0, num_ranks) with `rank` among them.
std::int64_t place_in_group(std::span<const std::int64_t> members,
                            std::int64_t rank,
                            std::int64_t num_ranks);

// "0, 1, 3".
std::string list_ranks(std::span<const std::int64_t> ranks);

// Where a rank stands in a group: "barrier; arrived: rank 0, 2; missing: rank 1".
std::string attendance_message(std::string_view doing,
                               std::span<const std::int64_t> arrived,
                               std::span<const std::int64_t> missing);

// What is said where ranks `missing` did not arrive within the deadline, and where two members do
// different things.
std::string late_message(std::string_view doing,
                         const WorldOptions& options,
                         std::span<const std::int64_t> arrived,
                         std::span<const std::int64_t> missing);
std::string mismatch_message(std::int64_t rank,
                             const GroupCall& call,
                             std::int64_t other_rank,
                             const GroupCall& other_call);

}  // namespace tessera
