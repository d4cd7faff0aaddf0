#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/dtype.h"

namespace tessera {

class Bell;
class Channel;
class Mover;
class Progress;
class RunProgress;
struct ChannelKey;
const Mover& host_mover();  // comm/mover.h

// How elements of several ranks become one. kSum rounds once per element for bf16 (the sum itself
// is f32) and is exact for i64.
enum class Fold : std::uint8_t { kSum, kMax };

std::string_view name(Fold fold);

// `count` elements that a collective reads.
struct ConstElements {
  DType dtype = DType::kF32;  // f32, bf16 or i64
  const std::byte* data = nullptr;
  std::int64_t count = 0;

  std::int64_t bytes() const { return count * static_cast<std::int64_t>(size_bytes(dtype)); }
};

// `count` elements that a collective writes.
struct Elements {
  DType dtype = DType::kF32;
  std::byte* data = nullptr;
  std::int64_t count = 0;

  // NOLINTNEXTLINE(google-explicit-constructor): as a span converts to a span of const.
  operator ConstElements() const { return {.dtype = dtype, .data = data, .count = count}; }
};

// One rank's end of an ordered group of ranks. Every member calls the same operations in the same
// order with equal sizes; an operation returns once this rank's memory may be used again. Elements
// fold in rank order in f32 (i64: exactly), so that results depend on nothing but values.
//
// Errors of every operation: kTimeout where a member does not arrive within the deadline, naming
// those that did not; kPeerFailure where another rank gave up; kInternal where members call
// different operations or sizes.
class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual std::int64_t rank() const = 0;  // the place in the group
  virtual std::int64_t size() const = 0;

  virtual void barrier() = 0;

  // Parts lie `stride` apart in `all`: rank r's begins at r * stride and ends after `stride`, or
  // where `all` ends, which may leave the last ranks' parts short or empty. `all` becomes
  // everybody's parts; `part` may be this rank's place in it. Sizes in bytes.
  virtual void all_gather(std::span<const std::byte> part,
                          std::span<std::byte> all,
                          std::size_t stride) = 0;

  // part = this rank's part of the fold of every rank's `all`, with parts as above; `part` may be
  // that place in `all`. Sizes in elements.
  virtual void reduce_scatter(Fold fold,
                              const ConstElements& all,
                              const Elements& part,
                              std::int64_t stride) = 0;

  // out = the fold of every rank's `in`; both may be the same memory.
  virtual void all_reduce(Fold fold, const ConstElements& in, const Elements& out) = 0;

  // Stretch j of `send` goes to rank j, and stretch j of `receive` comes from it; both are cut into
  // size() equal stretches and do not overlap.
  virtual void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) = 0;

  // `receive` = the `send` of the member before this one; the first one's comes from the last. Both
  // have one size and do not overlap.
  virtual void ring_shift(std::span<const std::byte> send, std::span<std::byte> receive) = 0;
};

// Where rank `rank`'s part begins in `size` elements or bytes, and how long it is.
struct Part {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

Part part_of(std::int64_t rank, std::int64_t stride, std::int64_t size);

// The members after and before `rank` in a ring of `size`.
constexpr std::int64_t after_in_ring(std::int64_t rank, std::int64_t size) {
  return rank + 1 == size ? 0 : rank + 1;
}

constexpr std::int64_t before_in_ring(std::int64_t rank, std::int64_t size) {
  return rank == 0 ? size - 1 : rank - 1;
}

struct WorldOptions {
  // For every wait of a collective or a transfer; starts anew whenever a rank of the run has
  // finished an instruction (comm/progress.h).
  double deadline_seconds = 60;
  // Whether somebody wants the run to stop. A wait that has then lasted for some seconds is given
  // up: what it waits for is stuck. Any thread may ask.
  bool (*stopping)() = nullptr;
  // How many seconds those are, where it is not as always. Any thread may ask.
  double (*stopping_seconds)() = nullptr;

  // How long a wait may last as things stand, and the same in words, with the reason where it is
  // not the deadline: "60 s".
  double patience_seconds() const;
  std::string patience() const;
};

// One rank's view of the run.
class World {
 public:
  World() = default;
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  virtual std::int64_t rank() const = 0;
  virtual std::int64_t size() const = 0;

  // This rank's end of a group of `members` (distinct ranks of the run, this one among them), in
  // their order. Each member calls it once for the same list and generation; groups of the same
  // members and another generation know nothing of each other, and may be used from another thread.
  // `mover` (comm/mover.h) works in the memory of the group's operations, and in that of the other
  // members; borrowed. Errors: kInvalidArgument; kUnsupported where ranks cannot reach each other's
  // memory of this kind.
  virtual std::unique_ptr<Communicator> group(std::span<const std::int64_t> members,
                                              std::int64_t generation = 0,
                                              const Mover& mover = host_mover()) = 0;

  // This rank's end of a channel (comm/channel.h), whose sender or receiver it is. Each end calls
  // it once for the same key and generation, without waiting for the other; over NCCL they do wait,
  // so that every rank makes its channels in the order of their keys. `mover` works in the memory
  // of the transfers; borrowed. Errors: as group().
  virtual std::unique_ptr<Channel> channel(const ChannelKey& key,
                                           std::int64_t generation = 0,
                                           const Mover& mover = host_mover()) = 0;

  // Rings when a transfer of one of this rank's channels may go on.
  virtual Bell& bell() = 0;

  // How long the thread that advances this rank's transfers may sleep by the bell while one is
  // under way.
  virtual std::chrono::microseconds longest_sleep() const = 0;

  // How far this rank has come.
  virtual Progress& progress() = 0;

  // How far all have come.
  virtual const RunProgress& run_progress() const = 0;

  // Takes in how far others have come, and tells them of this rank: called at least ten times
  // within a deadline, by the thread that advances transfers.
  virtual void exchange_progress() {}

  // Ends every operation of every group and channel of the run, on all ranks, with kPeerFailure and
  // `reason`.
  virtual void abort(std::string_view reason) = 0;

  // Why the run is aborted, by whichever rank, as far as this one has heard. Nothing while it is
  // not.
  virtual std::optional<std::string> abort_reason() = 0;

  // The end of a run that went well: every rank calls it once its groups are gone, and nothing
  // after it. It may wait for the others, with the errors of an operation. A rank that fails does
  // not call it.
  virtual void leave() {}
};

}  // namespace tessera
