#include "tessera/comm/collective_context.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/mesh/axes.h"

namespace tessera {

CollectiveContext::CollectiveContext(std::unique_ptr<Mover> mover) : mover_(std::move(mover)) {}

CollectiveContext::~CollectiveContext() = default;

void CollectiveContext::set_communicators(CommunicatorOf communicator_of) {
  communicator_of_ = std::move(communicator_of);
}

void CollectiveContext::set_channels(ChannelOf channel_of) {
  channel_of_ = std::move(channel_of);
}

Channel& CollectiveContext::channel(const AxisSizes& axes,
                                    const ChannelPlaces& places,
                                    TrafficClass traffic_class) const {
  TESSERA_REQUIRE(channel_of_ != nullptr,
                  ErrorCode::kInvalidArgument,
                  "a transfer along {}, but its stream has no channels",
                  to_string(axes));
  return channel_of_(axes, places, traffic_class);
}

std::span<Communicator* const> CollectiveContext::levels(const AxisSizes& axes,
                                                         TrafficClass traffic_class) {
  auto& of_class = levels_.at(static_cast<std::size_t>(traffic_class));
  const auto known = of_class.find(axes);
  return known != of_class.end()
             ? known->second
             : of_class.emplace(axes, find_levels(axes, traffic_class)).first->second;
}

std::vector<Communicator*> CollectiveContext::find_levels(const AxisSizes& axes,
                                                          TrafficClass traffic_class) const {
  std::vector<Communicator*> levels;
  for (const AxisSize& axis : axes) {
    if (axis.size == 1) {
      continue;
    }
    TESSERA_REQUIRE(communicator_of_ != nullptr,
                    ErrorCode::kInvalidArgument,
                    "a collective along {}, but its stream has no communicators",
                    axis.name);
    Communicator& level = communicator_of_(axis.name, traffic_class);
    TESSERA_CHECK(level.size() == axis.size,
                  "axis {} has {} ranks, the program was made for {}",
                  axis.name,
                  level.size(),
                  axis.size);
    levels.push_back(&level);
  }
  return levels;
}

}  // namespace tessera
