#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/comm/mover.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/traffic.h"

namespace tessera {

class Channel;
class Communicator;

// This rank's communicator along a mesh axis; what goes through it counts as that class (see
// AxisCommunicators). Errors: kInvalidArgument for an unknown axis.
using CommunicatorOf =
    std::function<Communicator&(std::string_view axis, TrafficClass traffic_class)>;

// This rank's end of a channel along mesh axes (see AxisCommunicators::channel()).
using ChannelOf = std::function<Channel&(
    const AxisSizes& axes, const ChannelPlaces& places, TrafficClass traffic_class)>;

// What collectives and transfers of one stream run on, whatever the backend. One thread uses it at
// a time.
class CollectiveContext {
 public:
  // `mover` works in the memory of the backend.
  explicit CollectiveContext(std::unique_ptr<Mover> mover);
  ~CollectiveContext();
  CollectiveContext(const CollectiveContext&) = delete;
  CollectiveContext& operator=(const CollectiveContext&) = delete;

  const Mover& mover() const { return *mover_; }

  // A context without can run programs of one rank.
  void set_communicators(CommunicatorOf communicator_of);

  // The communicators along `axes` (innermost first) of more than one
  // rank; what goes through them counts as that class. They are looked up once; the span stays
  // valid.
  // Errors: kInvalidArgument where the context has no communicator along an axis; kInternal where
  // that has another size.
  std::span<Communicator* const> levels(const AxisSizes& axes, TrafficClass traffic_class);

  // A context without can run programs that send nothing by channels.
  void set_channels(ChannelOf channel_of);

  // Errors: kInvalidArgument where the context has no channels, or none along the axes.
  Channel& channel(const AxisSizes& axes,
                   const ChannelPlaces& places,
                   TrafficClass traffic_class) const;

 private:
  std::vector<Communicator*> find_levels(const AxisSizes& axes, TrafficClass traffic_class) const;

  std::unique_ptr<Mover> mover_;
  CommunicatorOf communicator_of_;
  ChannelOf channel_of_;
  std::array<std::map<AxisSizes, std::vector<Communicator*>>, kNumTrafficClasses> levels_;
};

}  // namespace tessera
