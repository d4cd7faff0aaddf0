#include "tessera/comm/axis_communicators.h"

#include <array>

#include "tessera/base/error.h"

namespace tessera {

AxisCommunicators::AxisCommunicators(World& world, const Mesh& mesh) {
  TESSERA_REQUIRE(world.size() == mesh.num_ranks(),
                  ErrorCode::kInvalidConfig,
                  "the run has {} ranks, its layout {}",
                  world.size(),
                  mesh.num_ranks());
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    const std::array axes = {i};
    communicators_[mesh.axes[i].name] = world.group(mesh.members(axes, world.rank()));
  }
}

Communicator& AxisCommunicators::along(std::string_view axis) const {
  const auto found = communicators_.find(axis);
  TESSERA_REQUIRE(
      found != communicators_.end(), ErrorCode::kInvalidArgument, "the mesh has no axis {}", axis);
  return *found->second;
}

}  // namespace tessera
