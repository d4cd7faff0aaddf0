#include "tessera/mesh/dim_axes.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// The most ranks, at most `ranks`, that `bound` divides by.
std::int64_t largest_degree(std::int64_t bound, std::int64_t ranks) {
  while (bound % ranks != 0) {
    --ranks;
  }
  return ranks;
}

DimLayout layout_of(const Dim& dim, const AxisSizes& axes, const DimAxes& dims) {
  const std::int64_t padding = padding_of(dim.bound, axes);
  TESSERA_REQUIRE(padding == 0 || dims.find(dim.name)->second.pads,
                  ErrorCode::kInvalidConfig,
                  "{} = {} does not divide by the {} ranks of {}: {} of them would do, and so "
                  "would a multiple of {}",
                  dim.name,
                  dim.bound,
                  num_ranks(axes),
                  to_string(axes),
                  largest_degree(dim.bound, num_ranks(axes)),
                  num_ranks(axes));
  return {.axes = axes, .padding = padding};
}

// Every axis in the first dim that names it.
std::vector<AxisSizes> axes_by_dim(const TensorType& type, const DimAxes& dims) {
  std::vector<AxisSizes> by_dim;
  AxisSizes used;
  for (const Dim& dim : type.dims) {
    const AxisSizes& axes = axes_of_dim(dim, dims);
    const bool is_free = std::ranges::none_of(
        axes, [&](const AxisSize& axis) { return std::ranges::find(used, axis) != used.end(); });
    by_dim.push_back(is_free ? axes : AxisSizes());
    used.insert(used.end(), by_dim.back().begin(), by_dim.back().end());
  }
  return by_dim;
}

}  // namespace

DimAxes dim_axes(const Mesh& mesh, bool sequence_parallel, ContextKind context) {
  DimAxes dims;
  for (const MeshAxis& axis : mesh.axes) {
    const AxisSize size{.name = axis.name, .size = axis.size};
    if (axis.expert) {
      dims["expert"].axes.push_back(size);
    }
    if (axis.group == AxisGroup::kData) {
      dims["batch"].axes.push_back(size);
    } else if (axis.group == AxisGroup::kContext) {
      dims["seq"].axes.push_back(size);
      if (context == ContextKind::kUlysses) {
        dims["heads"].weak.push_back(size);
        dims["kv_heads"].weak.push_back(size);
      }
    } else if (axis.group == AxisGroup::kTensor) {
      for (const char* dim : {"heads", "kv_heads", "mlp", "vocab"}) {
        dims[dim].axes.push_back(size);
      }
      if (sequence_parallel) {
        dims["seq"].weak.push_back(size);
      }
    }
  }
  for (auto& [name, cut] : dims) {
    cut.pads = name == "mlp" || name == "vocab" || (name == "seq" && cut.axes.empty());
  }
  return dims;
}

const AxisSizes& axes_of_dim(const Dim& dim, const DimAxes& dims) {
  static const AxisSizes kNone;
  const auto found = dims.find(dim.name);
  return found == dims.end() ? kNone : found->second.axes;
}

AxisSizes axes_of(const TensorType& type, const DimAxes& dims) {
  AxisSizes axes;
  for (const AxisSizes& of_dim : axes_by_dim(type, dims)) {
    axes.insert(axes.end(), of_dim.begin(), of_dim.end());
  }
  return axes;
}

Layout layout_of(const TensorType& type, const DimAxes& dims) {
  const std::vector<AxisSizes> axes = axes_by_dim(type, dims);
  Layout layout;
  for (std::size_t d = 0; d < type.dims.size(); ++d) {
    layout.dims.push_back(layout_of(type.dims[d], axes[d], dims));
  }
  return layout;
}

TensorType local_type(const TensorType& type, const DimAxes& dims) {
  return local_type(type, layout_of(type, dims));
}

}  // namespace tessera
