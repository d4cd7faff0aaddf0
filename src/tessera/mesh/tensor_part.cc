#include "tessera/mesh/tensor_part.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

TensorBox box_of(const TensorType& whole,
                 const TensorType& local,
                 const Layout& layout,
                 const CoordinateOf& coordinate) {
  std::vector<std::int64_t> offset;
  for (std::size_t d = 0; d < whole.dims.size(); ++d) {
    offset.push_back(place_along(layout.dims[d].axes, coordinate) * local.dims[d].bound);
  }
  return {whole.bounds(), std::move(offset), local.bounds()};
}

}  // namespace

CoordinateOf coordinates_of(const Mesh& mesh, std::int64_t rank) {
  return [mesh, rank](std::string_view axis) {
    const auto found = std::ranges::find(mesh.axes, axis, &MeshAxis::name);
    TESSERA_CHECK(found != mesh.axes.end(), "no axis {}", axis);
    return mesh.coordinates(rank)[static_cast<std::size_t>(found - mesh.axes.begin())];
  };
}

std::int64_t place_along(const AxisSizes& axes, const CoordinateOf& coordinate) {
  std::int64_t place = 0;
  for (const AxisSize& axis : axes) {
    place = place * axis.size + coordinate(axis.name);
  }
  return place;
}

std::int64_t slice_index(const AxisSizes& axes,
                         std::int64_t degree,
                         const CoordinateOf& coordinate) {
  AxisSizes first;
  for (const AxisSize& axis : axes) {
    if (num_ranks(first) == degree) {
      break;
    }
    first.push_back(axis);
  }
  TESSERA_REQUIRE(num_ranks(first) == degree,
                  ErrorCode::kInvalidArgument,
                  "slices of degree {}, expected the ranks of some first axes of {}",
                  degree,
                  axes.empty() ? "none" : to_string(axes));
  return place_along(first, coordinate);
}

TensorPart::TensorPart(const TensorType& whole, const DimAxes& dims, const CoordinateOf& coordinate)
    : TensorPart(whole, layout_of(whole, dims), coordinate) {}

TensorPart::TensorPart(const TensorType& whole,
                       const Layout& layout,
                       const CoordinateOf& coordinate)
    : local_(local_type(whole, layout)), box_(box_of(whole, local_, layout, coordinate)) {}

}  // namespace tessera
