#include "tessera/comm/axis_communicators.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/counted_channel.h"

namespace tessera {

AxisCommunicators::AxisCommunicators(World& world,
                                     const Mesh& mesh,
                                     std::int64_t generation,
                                     const Mover& mover)
    : world_(world), mesh_(mesh), generation_(generation) {
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

AxisCommunicators::~AxisCommunicators() {
  while (!made_.empty()) {
    made_.erase(made_.begin());
  }
}

Communicator& AxisCommunicators::along(std::string_view axis, TrafficClass traffic_class) const {
  const auto found = axes_.find(axis);
  TESSERA_REQUIRE(
      found != axes_.end(), ErrorCode::kInvalidArgument, "the mesh has no axis {}", axis);
  return *found->second.counted.at(static_cast<std::size_t>(traffic_class));
}

Channel& AxisCommunicators::channel(const AxisSizes& axes,
                                    const ChannelPlaces& places,
                                    TrafficClass traffic_class,
                                    const Mover& mover) {
  const std::scoped_lock lock(mutex_);
  auto found = channels_.find({axes, places});
  if (found == channels_.end()) {
    const AxisChannel made = {.channel = make_channel(axes, places, traffic_class, mover),
                              .traffic_class = traffic_class,
                              .mover = &mover};
    found = channels_.emplace(std::pair(axes, places), made).first;
  }
  TESSERA_REQUIRE(found->second.mover == &mover,
                  ErrorCode::kInvalidArgument,
                  "channel {} from {} to {} along {} moves memory for two streams",
                  places.number,
                  places.from,
                  places.to,
                  to_string(axes));
  TESSERA_REQUIRE(found->second.traffic_class == traffic_class,
                  ErrorCode::kInvalidArgument,
                  "channel {} from {} to {} along {} counts as {}, not as {}",
                  places.number,
                  places.from,
                  places.to,
                  to_string(axes),
                  name(found->second.traffic_class),
                  name(traffic_class));
  return *found->second.channel;
}

Channel* AxisCommunicators::make_channel(const AxisSizes& axes,
                                         const ChannelPlaces& places,
                                         TrafficClass counted_as,
                                         const Mover& mover) {
  std::vector<std::size_t> listed;
  for (const AxisSize& axis : axes) {
    const auto found = std::ranges::find(mesh_.axes, axis.name, &MeshAxis::name);
    TESSERA_REQUIRE(found != mesh_.axes.end() && found->size == axis.size,
                    ErrorCode::kInvalidArgument,
                    "the mesh has no axis {} of {}",
                    axis.name,
                    axis.size);
    listed.push_back(static_cast<std::size_t>(found - mesh_.axes.begin()));
  }
  const std::vector<std::int64_t> ranks = mesh_.members(listed, world_.rank());
  const auto rank_at = [&](std::int64_t place) {
    TESSERA_REQUIRE(place >= 0 && place < std::ssize(ranks),
                    ErrorCode::kInvalidArgument,
                    "a channel to or from {} along {}: expected places of [0, {})",
                    place,
                    to_string(axes),
                    ranks.size());
    return ranks[static_cast<std::size_t>(place)];
  };
  const ChannelKey key = {
      .from = rank_at(places.from), .to = rank_at(places.to), .number = places.number};
  TESSERA_REQUIRE(!made_.contains(key),
                  ErrorCode::kInvalidArgument,
                  "channel {} from rank {} to rank {} has two names",
                  key.number,
                  key.from,
                  key.to);
  std::unique_ptr<Channel> channel = world_.channel(key, generation_, mover);
  const auto of_class = static_cast<std::size_t>(counted_as);
  const bool sends = key.from == world_.rank();
  CountedCommunicator* const counted =
      sends ? axes_.find(crossed_axis(axes, places))->second.counted.at(of_class).get() : nullptr;
  return made_.emplace(key, std::make_unique<CountedChannel>(std::move(channel), counted))
      .first->second.get();
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
