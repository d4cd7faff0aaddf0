#include "tessera/ops/collective_legs.h"

#include <numeric>

namespace tessera {

AxisSizes legs(const CollectiveUse& use) {
  AxisSizes inwards(use.axes.rbegin(), use.axes.rend());
  if (use.kind == CollectiveKind::kAllGather) {
    return inwards;
  }
  AxisSizes order = use.axes;
  if (use.kind == CollectiveKind::kAllReduce && order.size() > 1) {
    order.insert(order.end(), inwards.begin(), inwards.end());
  }
  return order;
}

std::int64_t sent_along(const CollectiveUse& use, const AxisSize& axis) {
  const auto sent = use.sent.find(axis.name);
  return sent == use.sent.end()
             ? 0
             : std::accumulate(sent->second.begin(), sent->second.end(), std::int64_t{0});
}

}  // namespace tessera
