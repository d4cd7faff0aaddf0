#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/mesh/cluster.h"
#include "tessera/ops/op.h"

namespace tessera {

// A collective of the ranks along one axis, or a transfer between two ranks: a leg of a
// CollectiveUse.
struct LegWork {
  std::string axis;  // none of a transfer
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::int64_t ranks = 2;  // that take part
  double bytes = 0.0;      // of the whole that it gathers, reduces, deals or sends, on the wire
  double sent = 0.0;  // by a rank in one of them, as CollectiveUse counts: padding is sent, too
  std::int64_t count = 1;  // one after the other

  friend bool operator==(const LegWork&, const LegWork&) = default;
};

// The legs() of a use, those along axes of one rank left out. An all-reduce over several axes is a
// reduce-scatter along each, outwards, and an all-gather along each, back inwards. What they send
// adds up to use.sent, axis by axis.
std::vector<LegWork> leg_works(const CollectiveUse& use);

struct LegTime {
  double latency = 0.0;  // seconds that no bandwidth shortens
  double moving = 0.0;   // seconds for which it keeps the link of a rank busy when it is alone:
                        // where the level is shared, the one of the group; 0 where the bandwidth is
                        // not known

  friend bool operator==(const LegTime&, const LegTime&) = default;
};

enum class CollectiveStyle : std::uint8_t {
  kOwn,     // each rank sends the others their parts, and folds in a fixed order
  kNative,  // the fastest of NCCL's algorithms, level by level
  kFlat,    // the same over all levels at once (flat_time())
  kBuckets  // likewise, and those of the states of a layer are one
};

// How long a leg takes whose ranks are in different groups of the level below, when nothing
// disturbs it. An efficiency that is not known counts as 1.
LegTime leg_time(const Level& level, const LegWork& work, CollectiveStyle style);

// The same of all legs of a gather or a reduction at once, where NCCL has one ring or tree over all
// ranks: each level moves its parts while the others move theirs, so that the slowest sets the
// pace. levels[i] is that of use.axes[i]. Errors: kInvalidArgument for other kinds, and for another
// number of levels.
LegTime flat_time(std::span<const Level> levels, const CollectiveUse& use);

}  // namespace tessera
