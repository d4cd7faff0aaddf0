#include "tessera/cost/collective_time.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/cost/constants.h"
#include "tessera/ops/collective_legs.h"

namespace tessera {
namespace {

bool is_transfer(CollectiveKind kind) {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive;
}

// Times that a leg goes over its ranks: an all-reduce scatters sums and gathers them.
std::int64_t rounds(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce ? 2 : 1;
}

// Both ends wait for all of the bytes, of which the sender alone counts as sending.
LegWork transfer_work(const CollectiveUse& use) {
  LegWork work = {
      .axis = "", .kind = use.kind, .bytes = static_cast<double>(use.bytes), .count = use.count};
  for (const AxisSize& axis : use.axes) {
    work.sent += static_cast<double>(sent_along(use, axis));
  }
  return work;
}

// Along the axes in this order, each of which is a leg as often as `times` says.
std::vector<LegWork> works_along(const CollectiveUse& use,
                                 const AxisSizes& axes,
                                 CollectiveKind kind,
                                 double times) {
  std::vector<LegWork> works;
  double left = static_cast<double>(use.bytes);  // by the legs before, where each folds
  for (const AxisSize& axis : axes) {
    const auto ranks = static_cast<double>(axis.size);
    if (axis.size > 1) {
      const double sent = static_cast<double>(sent_along(use, axis)) / times;
      // What the rank sends, and what it keeps: the padding of an all-reduce's few elements, too,
      // which is not of the whole. It keeps nothing of what goes round.
      const double parts = kind == CollectiveKind::kRingShift
                               ? sent
                               : sent / static_cast<double>(rounds(kind)) * ranks / (ranks - 1.0);
      const double most = use.kind == CollectiveKind::kAllReduce ? left : parts;
      works.push_back({.axis = axis.name,
                       .kind = kind,
                       .ranks = axis.size,
                       .bytes = std::min(parts, most),
                       .sent = sent,
                       .count = use.count});
    }
    left /= ranks;
  }
  return works;
}

double log2_of(std::int64_t ranks) {
  return std::log2(static_cast<double>(ranks));
}

// Seconds for which a collective of `bytes` that sends `wire` of them keeps a link busy; it takes
// `half` bytes to reach half of the speed.
double moving(const Level& level, double bytes, double wire, double half) {
  if (level.bandwidth == 0.0 || bytes <= 0.0) {
    return 0.0;
  }
  const double efficiency = level.efficiency > 0.0 ? level.efficiency : 1.0;
  return wire / (level.bandwidth * efficiency) * (1.0 + std::pow(half / bytes, kHalfExponent));
}

// Parts sent straight to whom they are for.
LegTime direct_time(const Level& level, const LegWork& work) {
  const double wire = is_transfer(work.kind) ? work.bytes : work.sent;
  // To a neighbour it is one step, however many ranks there are.
  const double steps = work.kind == CollectiveKind::kRingShift
                           ? 1.0
                           : log2_of(work.ranks) * static_cast<double>(rounds(work.kind));
  return {.latency = level.latency * steps, .moving = moving(level, work.bytes, wire, level.half)};
}

const LegTime& faster(const LegTime& a, const LegTime& b) {
  return b.latency + b.moving < a.latency + a.moving ? b : a;
}

// Where a ring or a tree crosses a level.
struct Hop {
  const Level* level = nullptr;
  std::int64_t ranks = 2;  // groups of the level below
  double inside = 1.0;     // ranks of each of these, which share what crosses if each has a link
};

// Of the level on which `wire` bytes of each rank take longest.
double slowest(std::span<const Hop> hops, double bytes, double wire, double share_of_half) {
  double most = 0.0;
  for (const Hop& hop : hops) {
    const double part = hop.level->shared ? wire : wire / hop.inside;
    most = std::max(most, moving(*hop.level, bytes, part, hop.level->half * share_of_half));
  }
  return most;
}

// Of a gather, a reduction or both over all of the levels, innermost first.
LegTime native_time(std::span<const Hop> hops, CollectiveKind kind, double bytes) {
  const Hop& outermost = hops.back();
  const double all = outermost.inside * static_cast<double>(outermost.ranks);
  const auto times = static_cast<double>(rounds(kind));
  double depth = 0.0;
  double around = 0.0;
  for (const Hop& hop : hops) {
    const double groups = all / hop.inside;
    const double crossings = groups - groups / static_cast<double>(hop.ranks);
    depth += hop.level->latency * log2_of(hop.ranks);
    around += hop.level->latency * std::max(log2_of(hop.ranks), kRingStep * crossings);
  }
  const bool all_reduces = kind == CollectiveKind::kAllReduce;
  const double ring = times * (all - 1.0) / all * bytes;
  const LegTime large = {.latency = times * around, .moving = slowest(hops, bytes, ring, 1.0)};
  // A tree, which sends all sums up and down, is there for all-reduces alone.
  const double few = kSmallBytes * (all_reduces ? 2.0 * bytes : ring);
  const LegTime small = {.latency = times * (all_reduces ? depth : around),
                         .moving = slowest(hops, bytes, few, kSmallHalf)};
  const Level& level = *outermost.level;
  if (!all_reduces || hops.size() > 1 || !level.switch_reduces || outermost.ranks < kSwitchRanks) {
    return faster(large, small);
  }
  const double through = (all + 1.0) / all * bytes;
  const LegTime switched = {.latency = times * depth,
                            .moving = moving(level, bytes, through / kSwitchShare, level.half)};
  return faster(faster(large, small), switched);
}

LegTime repeated(const LegTime& one, std::int64_t count) {
  const auto times = static_cast<double>(count);
  return {.latency = one.latency * times, .moving = one.moving * times};
}

}  // namespace

std::vector<LegWork> leg_works(const CollectiveUse& use) {
  if (use.channel) {
    return {transfer_work(use)};
  }
  if (use.kind != CollectiveKind::kAllReduce || use.axes.size() == 1) {
    return works_along(use, legs(use), use.kind, 1.0);
  }
  std::vector<LegWork> works = works_along(use, use.axes, CollectiveKind::kReduceScatter, 2.0);
  for (std::size_t i = works.size(); i-- > 0;) {
    LegWork back = works[i];
    back.kind = CollectiveKind::kAllGather;
    works.push_back(std::move(back));
  }
  return works;
}

LegTime leg_time(const Level& level, const LegWork& work, CollectiveStyle style) {
  const bool is_straight =
      style == CollectiveStyle::kOwn || is_transfer(work.kind) || is_direct(work.kind);
  const Hop hop = {.level = &level, .ranks = work.ranks};
  return repeated(
      is_straight ? direct_time(level, work) : native_time({&hop, 1}, work.kind, work.bytes),
      work.count);
}

LegTime flat_time(std::span<const Level> levels, const CollectiveUse& use) {
  TESSERA_REQUIRE(!use.channel && !is_direct(use.kind),
                  ErrorCode::kInvalidArgument,
                  "{} over all levels at once, expected a gather or a reduction",
                  name(use.kind));
  TESSERA_REQUIRE(levels.size() == use.axes.size(),
                  ErrorCode::kInvalidArgument,
                  "{} levels for {} axes, expected one for each",
                  levels.size(),
                  use.axes.size());
  std::vector<Hop> hops;
  double inside = 1.0;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const std::int64_t ranks = use.axes[i].size;
    if (ranks > 1) {
      hops.push_back({.level = &levels[i], .ranks = ranks, .inside = inside});
    }
    inside *= static_cast<double>(ranks);
  }
  return hops.empty()
             ? LegTime{}
             : repeated(native_time(hops, use.kind, static_cast<double>(use.bytes)), use.count);
}

}  // namespace tessera
