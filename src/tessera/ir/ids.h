#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace tessera {

// An index that does not mix with indices of other things.
template <class Tag>
struct Id {
  std::int32_t index = -1;

  static constexpr Id of(std::size_t position) { return {static_cast<std::int32_t>(position)}; }

  constexpr std::size_t at() const { return static_cast<std::size_t>(index); }

  constexpr bool valid() const { return index >= 0; }

  friend constexpr auto operator<=>(Id, Id) = default;
};

using ValueId = Id<struct ValueTag>;      // into Graph::values
using NodeId = Id<struct NodeTag>;        // into Graph::nodes
using BufferId = Id<struct BufferTag>;    // into Program::buffers
using SegmentId = Id<struct SegmentTag>;  // into Program::segments
using StreamId = Id<struct StreamTag>;    // into Program::streams
using PoolId = Id<struct PoolTag>;        // into Program::pools
using EventId = Id<struct EventTag>;      // unique in a program
using Rank = Id<struct RankTag>;

}  // namespace tessera
