#pragma once

#include <cstdint>

#include "tessera/mesh/axes.h"
#include "tessera/ops/op.h"

namespace tessera {

// The axes in the order in which a collective talks along them, those of one rank included: from
// the innermost outwards where it reduces, back inwards where it gathers.
AxisSizes legs(const CollectiveUse& use);

// Bytes that a rank sends along the axis in all legs of one of the collectives.
std::int64_t sent_along(const CollectiveUse& use, const AxisSize& axis);

}  // namespace tessera
