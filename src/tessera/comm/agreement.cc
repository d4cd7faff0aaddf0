#include "tessera/comm/agreement.h"

#include <algorithm>
#include <cstddef>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera {

std::string_view name(Operation operation) {
  switch (operation) {
    case Operation::kBarrier:
      return "barrier";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kAllToAll:
      return "all_to_all";
    case Operation::kRingShift:
      return "ring_shift";
    case Operation::kSend:
      return "send";
    case Operation::kReceive:
      return "receive";
  }
  return "an unknown operation";
}

std::string to_string(const GroupCall& call) {
  const std::string text = format("{} of {} bytes", name(call.operation), call.bytes);
  return call.stride_bytes == 0 ? text : format("{} in parts of {}", text, call.stride_bytes);
}

std::int64_t place_in_group(std::span<const std::int64_t> members,
                            std::int64_t rank,
                            std::int64_t num_ranks) {
  std::vector<std::int64_t> sorted(members.begin(), members.end());
  std::ranges::sort(sorted);
  const bool distinct = std::ranges::adjacent_find(sorted) == sorted.end();
  TESSERA_REQUIRE(
      distinct && (sorted.empty() || (sorted.front() >= 0 && sorted.back() < num_ranks)),
      ErrorCode::kInvalidArgument,
      "a group of ranks {}: expected distinct ranks of [0, {})",
      list_ranks(members),
      num_ranks);
  const auto own = std::ranges::find(members, rank);
  TESSERA_REQUIRE(own != members.end(),
                  ErrorCode::kInvalidArgument,
                  "a group of ranks {}: expected rank {} among them",
                  list_ranks(members),
                  rank);
  return own - members.begin();
}

std::string list_ranks(std::span<const std::int64_t> ranks) {
  std::string text;
  for (const std::int64_t rank : ranks) {
    text += format("{}{}", text.empty() ? "" : ", ", rank);
  }
  return text;
}

std::string attendance_message(std::string_view doing,
                               std::span<const std::int64_t> arrived,
                               std::span<const std::int64_t> missing) {
  return format("{}; arrived: rank {}; missing: {}",
                doing,
                list_ranks(arrived),
                missing.empty() ? "none" : "rank " + list_ranks(missing));
}

std::string late_message(std::string_view doing,
                         const WorldOptions& options,
                         std::span<const std::int64_t> arrived,
                         std::span<const std::int64_t> missing) {
  return attendance_message(
      format("{}: no answer within {}", doing, options.patience()), arrived, missing);
}

std::string mismatch_message(std::int64_t rank,
                             const GroupCall& call,
                             std::int64_t other_rank,
                             const GroupCall& other_call) {
  return format("rank {} calls {}, rank {} calls {}",
                rank,
                to_string(call),
                other_rank,
                to_string(other_call));
}

namespace {

// Seconds of a wait in a run that was asked to stop: what has not come by then is stuck.
double while_stopping(const WorldOptions& options) {
  constexpr double kUsual = 5;
  return options.stopping_seconds == nullptr ? kUsual : options.stopping_seconds();
}

bool is_hurried(const WorldOptions& options) {
  return options.stopping != nullptr && options.deadline_seconds > while_stopping(options) &&
         options.stopping();
}

}  // namespace

double WorldOptions::patience_seconds() const {
  return is_hurried(*this) ? while_stopping(*this) : deadline_seconds;
}

std::string WorldOptions::patience() const {
  return is_hurried(*this)
             ? format("{} s, the limit in a run that was asked to stop", while_stopping(*this))
             : format("{} s", deadline_seconds);
}

}  // namespace tessera
