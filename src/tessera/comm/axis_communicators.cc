#include "tessera/comm/axis_communicators.h"

#include "tessera/base/error.h"

namespace tessera {

AxisCommunicators::AxisCommunicators(World& world,
                                     const Mesh& mesh,
                                     std::int64_t generation,
                                     const Mover& mover) {
  TESSERA_REQUIRE(world.size() == mesh.num_ranks(),
                  ErrorCode::kInvalidConfig,
                  "the run has {} ranks, its layout {}",
                  world.size(),
                  mesh.num_ranks());
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    const std::array listed = {i};
    Axis& axis = axes_[mesh.axes[i].name];
    axis.communicator = world.group(mesh.members(listed, world.rank()), generation, mover);
    for (std::unique_ptr<CountedCommunicator>& counted : axis.counted) {
      counted = std::make_unique<CountedCommunicator>(*axis.communicator);
    }
  }
}

Communicator& AxisCommunicators::along(std::string_view axis, TrafficClass traffic_class) const {
  const auto found = axes_.find(axis);
  TESSERA_REQUIRE(
      found != axes_.end(), ErrorCode::kInvalidArgument, "the mesh has no axis {}", axis);
  return *found->second.counted.at(static_cast<std::size_t>(traffic_class));
}

Traffic AxisCommunicators::sent() const {
  Traffic sent;
  for (const auto& [name, axis] : axes_) {
    for (std::size_t i = 0; i < kNumTrafficClasses; ++i) {
      sent[name][i] = axis.counted[i]->sent_bytes();
    }
  }
  return sent;
}

void AxisCommunicators::add_sent(const Traffic& more) {
  for (const auto& [name, bytes] : more) {
    Axis& axis = axes_.at(name);
    for (std::size_t i = 0; i < kNumTrafficClasses; ++i) {
      axis.counted[i]->add_sent_bytes(bytes[i]);
    }
  }
}

}  // namespace tessera
