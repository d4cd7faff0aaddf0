#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "tessera/ir/tensor_type.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/dim_axes.h"
#include "tessera/mesh/layout.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/tensor_box.h"

namespace tessera {

// A rank's coordinate along an axis.
using CoordinateOf = std::function<std::int64_t(std::string_view axis)>;

// Those of a rank of a mesh, which is copied. Errors, of the function: kInternal for an axis that
// the mesh has not.
CoordinateOf coordinates_of(const Mesh& mesh, std::int64_t rank);

// A rank's place among those along `axes`, the first of which is the most significant digit.
std::int64_t place_along(const AxisSizes& axes, const CoordinateOf& coordinate);

// Which of the `degree` slices of a tensor a rank holds that is cut over the first of `axes` with
// so many ranks. A slice over more axes lies inside the rank's slice over fewer, and with the
// innermost level first, the hops of a hierarchical collective are contiguous. Errors:
// kInvalidArgument where no first axes have that many ranks.
std::int64_t slice_index(const AxisSizes& axes,
                         std::int64_t degree,
                         const CoordinateOf& coordinate);

// One rank's part of a tensor.
class TensorPart {
 public:
  // Errors: as layout_of().
  TensorPart(const TensorType& whole, const DimAxes& dims, const CoordinateOf& coordinate);
  TensorPart(const TensorType& whole, const Layout& layout, const CoordinateOf& coordinate);

  const TensorType& local() const { return local_; }

  // Padding included, which the caller fills with zeros.
  std::int64_t num_elements() const { return local_.num_elements(); }

  // Where it lies in the whole.
  const TensorBox& box() const { return box_; }

 private:
  TensorType local_;
  TensorBox box_;
};

}  // namespace tessera
