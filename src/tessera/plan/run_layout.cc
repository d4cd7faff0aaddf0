#include "tessera/plan/run_layout.h"

#include <cstddef>
#include <vector>

#include "tessera/mesh/tensor_part.h"

namespace tessera {
namespace {

// Leading state axes that a degree covers: those of the levels inside it.
std::size_t num_axes(const Mesh& mesh, std::int64_t degree) {
  std::size_t count = 0;
  for (const DataLevel& level : data_levels(mesh)) {
    count += level.degree <= degree ? level.axes.size() : 0;
  }
  return count;
}

AxisSizes axes_of(AxisGroup group, const Mesh& mesh) {
  AxisSizes axes;
  for (const MeshAxis& axis : mesh.axes) {
    if (axis.group == group) {
      axes.push_back({.name = axis.name, .size = axis.size});
    }
  }
  return axes;
}

// A rank's place among those that differ along the axes of a group.
std::int64_t place_in(AxisGroup group, const Mesh& mesh, std::int64_t rank) {
  const std::vector<std::int64_t> coordinates = mesh.coordinates(rank);
  std::int64_t place = 0;
  std::int64_t step = 1;
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    if (mesh.axes[i].group == group) {
      place += coordinates[i] * step;
      step *= mesh.axes[i].size;
    }
  }
  return place;
}

}  // namespace

DimAxes RunLayout::evaluation_dims() const {
  DimAxes dims = this->dims();
  const AxisSizes data = axes_of(AxisGroup::kData, mesh);
  for (auto& [name, cut] : dims) {
    std::erase_if(cut.axes, [&](const AxisSize& axis) { return contains(data, axis); });
  }
  std::erase_if(dims,
                [](const auto& cut) { return cut.second.axes.empty() && cut.second.weak.empty(); });
  return dims;
}

AttentionChoices RunLayout::attention() const {
  if (num_context() == 1) {
    return {};
  }
  const bool is_by_heads = context.kind == ContextKind::kUlysses;
  return {.spread = !is_by_heads && context.balance == ContextBalance::kZigzag,
          .by_heads = is_by_heads,
          .ring = context.kind == ContextKind::kRing};
}

std::int64_t RunLayout::num_data() const {
  std::int64_t count = 1;
  for (const MeshAxis& axis : mesh.axes) {
    count *= axis.group == AxisGroup::kData ? axis.size : 1;
  }
  return count;
}

StateAxes state_axes(const RunLayout& layout) {
  const Mesh& mesh = layout.mesh;
  return {.axes = data_axes(mesh),
          .param = num_axes(mesh, layout.placement.param),
          .secondary = num_axes(mesh, layout.placement.secondary),
          .grad = num_axes(mesh, layout.placement.grad),
          .optimizer = num_axes(mesh, layout.placement.optimizer),
          .wires = {.param = wire_of_axes(layout.wires.param, mesh),
                    .secondary = wire_of_axes(layout.wires.secondary, mesh),
                    .grad = wire_of_axes(layout.wires.grad, mesh),
                    .update = wire_of_axes(layout.wires.update, mesh)},
          .secondary_use = layout.secondary_use};
}

std::int64_t sequence_unit(const RunLayout& layout) {
  return sequence_unit(
      layout.num_context(),
      layout.context.balance,
      layout.sequence_parallel ? num_ranks(axes_of(AxisGroup::kTensor, layout.mesh)) : 1);
}

ContextPart context_part(const RunLayout& layout, std::int64_t rank) {
  const Mesh& mesh = layout.mesh;
  const AxisSizes axes = context_axes(mesh);
  return {.ranks = num_ranks(axes),
          .place = place_along(axes, coordinates_of(mesh, rank)),
          .balance = layout.context.balance};
}

AxisSizes context_axes(const Mesh& mesh) {
  return axes_of(AxisGroup::kContext, mesh);
}

AxisSizes pipeline_axes(const Mesh& mesh) {
  return axes_of(AxisGroup::kPipeline, mesh);
}

std::int64_t num_pipeline_ranks(const Mesh& mesh) {
  return num_ranks(pipeline_axes(mesh));
}

std::int64_t data_place(const Mesh& mesh, std::int64_t rank) {
  return place_in(AxisGroup::kData, mesh, rank);
}

std::int64_t pipeline_place(const Mesh& mesh, std::int64_t rank) {
  return place_in(AxisGroup::kPipeline, mesh, rank);
}

}  // namespace tessera
