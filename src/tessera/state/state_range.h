#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/ir/state.h"
#include "tessera/mesh/placement.h"
#include "tessera/mesh/tensor_part.h"
#include "tessera/state/training_state.h"

namespace tessera {

// Where a state's elements lie among those of the rank's part of its tensor.
struct StateRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;  // without the padding behind
};

// A rank's part of a tensor, and the axes along which that is cut into slices.
struct SlicedPart {
  SlicedPart(const TensorType& whole, const StatePart& place)
      : tensor(whole, place.dims, place.coordinate),
        axes(place.slice_axes),
        coordinate(place.coordinate) {
    const AxisSizes cut_by = axes_of(whole, place.dims);
    std::erase_if(axes, [&](const AxisSize& axis) { return contains(cut_by, axis); });
  }

  // Of the rank's slice of `degree`, which has `size` elements.
  StateRange slice(std::int64_t degree, std::int64_t size) const {
    const std::int64_t begin = slice_index(axes, degree, coordinate) * size;
    return {.begin = begin,
            .count = std::clamp<std::int64_t>(tensor.num_elements() - begin, 0, size)};
  }

  StateRange all() const { return {.begin = 0, .count = tensor.num_elements()}; }

  std::int64_t padded() const { return padded_elements(tensor.num_elements(), num_ranks(axes)); }

  TensorPart tensor;
  AxisSizes axes;
  const CoordinateOf& coordinate;
};

// Of what a state of this type holds.
StateRange range_of(const SlicedPart& part, const TensorType& state);

// Of a rank's slice of all N: the smallest that a state can be kept in.
StateRange saved_range(const SlicedPart& part);

// What a state is to a checkpoint; nothing where it is a copy, or gone when the step ends.
std::optional<TensorRole> saved_role(StateRole role);

// Errors: kInternal where there is none of that name.
const ParameterInit& find_parameter(const std::vector<ParameterInit>& parameters,
                                    const std::string& name);

}  // namespace tessera
