#pragma once

#include <utility>

#include "tessera/mesh/axes.h"
#include "tessera/ops/all_ops.h"

namespace tessera {

// A send or a receive along the pipeline's axes, `attrs` saying what else there is to say of it.
template <class Attrs>
OpRef transfer_op(const AxisSizes& axes, const ChannelPlaces& places, Attrs attrs) {
  attrs.axes = axes;
  attrs.from = places.from;
  attrs.to = places.to;
  attrs.number = places.number;
  return make_op(std::move(attrs));
}

}  // namespace tessera
