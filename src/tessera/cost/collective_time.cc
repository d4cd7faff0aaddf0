#include "tessera/cost/collective_time.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

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
      // which is not of the whole.
      const double parts = sent / static_cast<double>(rounds(kind)) * ranks / (ranks - 1.0);
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
  return {.latency = level.latency * log2_of(work.ranks) * static_cast<double>(rounds(work.kind)),
          .moving = moving(level, work.bytes, wire, level.half)};
}

const LegTime& faster(const LegTime& a, const LegTime& b) {
  return b.latency + b.moving < a.latency + a.moving ? b : a;
}

LegTime native_time(const Level& level, const LegWork& work) {
  const auto ranks = static_cast<double>(work.ranks);
  const bool all_reduces = work.kind == CollectiveKind::kAllReduce;
  const double latency = level.latency * static_cast<double>(rounds(work.kind));
  const double depth = log2_of(work.ranks);
  const double around = std::max(depth, kRingStep * (ranks - 1.0));
  const double ring = static_cast<double>(rounds(work.kind)) * (ranks - 1.0) / ranks * work.bytes;
  const LegTime large = {.latency = latency * around,
                         .moving = moving(level, work.bytes, ring, level.half)};
  // A tree, which sends all sums up and down, is there for all-reduces alone.
  const double wire = all_reduces ? 2.0 * work.bytes : ring;
  const LegTime small = {
      .latency = latency * (all_reduces ? depth : around),
      .moving = moving(level, work.bytes, wire * kSmallBytes, level.half * kSmallHalf)};
  if (!all_reduces || !level.switch_reduces || work.ranks < kSwitchRanks) {
    return faster(large, small);
  }
  const double through = (ranks + 1.0) / ranks * work.bytes;
  const LegTime switched = {
      .latency = latency * depth,
      .moving = moving(level, work.bytes, through / kSwitchShare, level.half)};
  return faster(faster(large, small), switched);
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
  const bool is_direct = style == CollectiveStyle::kOwn || is_transfer(work.kind) ||
                         work.kind == CollectiveKind::kAllToAll;
  const LegTime one = is_direct ? direct_time(level, work) : native_time(level, work);
  const auto count = static_cast<double>(work.count);
  return {.latency = one.latency * count, .moving = one.moving * count};
}

}  // namespace tessera
