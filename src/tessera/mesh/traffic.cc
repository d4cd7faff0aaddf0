#include "tessera/mesh/traffic.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/mesh/mesh.h"

namespace tessera {

std::string_view name(TrafficClass traffic_class) {
  switch (traffic_class) {
    case TrafficClass::kState:
      return "state";
    case TrafficClass::kTensor:
      return "tensor";
    case TrafficClass::kScalar:
      return "scalar";
  }
  return "?";
}

void add(Traffic& traffic, const Traffic& more, std::int64_t times) {
  for (const auto& [where, bytes] : more) {
    ClassBytes& total = traffic[where];
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      total[i] += times * bytes[i];
    }
  }
}

Traffic by_level(const Traffic& by_axis, const Mesh& mesh) {
  Traffic levels;
  for (const auto& [axis, bytes] : by_axis) {
    const auto found = std::ranges::find(mesh.axes, axis, &MeshAxis::name);
    TESSERA_REQUIRE(found != mesh.axes.end(),
                    ErrorCode::kInvalidArgument,
                    "traffic along {}, an axis that the mesh lacks",
                    axis);
    add(levels, {{found->level, bytes}});
  }
  return levels;
}

Traffic slices_traffic(const AxisSizes& axes,
                       TrafficClass traffic_class,
                       std::int64_t slice_bytes) {
  std::int64_t part = slice_bytes * num_ranks(axes);
  Traffic sent;
  for (const AxisSize& axis : axes) {
    part /= axis.size;
    sent[axis.name].at(static_cast<std::size_t>(traffic_class)) += part * (axis.size - 1);
  }
  return sent;
}

// Parts of whole cache lines, scattered and gathered.
Traffic all_reduce_traffic(const AxisSizes& axes,
                           TrafficClass traffic_class,
                           std::int64_t count,
                           std::int64_t element_bytes) {
  Traffic sent;
  add(sent,
      slices_traffic(
          axes, traffic_class, all_reduce_stride(count, num_ranks(axes)) * element_bytes),
      2);
  return sent;
}

std::int64_t all_reduce_stride(std::int64_t count, std::int64_t num_ranks) {
  constexpr std::int64_t kLine = 16;
  const std::int64_t lines = (count + kLine - 1) / kLine;
  return (lines + num_ranks - 1) / num_ranks * kLine;
}

}  // namespace tessera
