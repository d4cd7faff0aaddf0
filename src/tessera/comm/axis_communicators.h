#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/comm/channel.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/counted_communicator.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/traffic.h"

namespace tessera {

// A rank's communicators along every axis of the mesh, and its channels.
class AxisCommunicators {
 public:
  // Every rank of the run makes one. Borrows `world` and `mover`, which works in the memory of
  // the communicators' operations; keeps a copy of the mesh. Errors: kInvalidConfig where the mesh
  // has another number of ranks than the run; as World::group().
  AxisCommunicators(World& world,
                    const Mesh& mesh,
                    std::int64_t generation = 0,
                    const Mover& mover = host_mover());

  // Ends the channels in the order of their keys: as they were made where both ends wait.
  ~AxisCommunicators();

  AxisCommunicators(const AxisCommunicators&) = delete;
  AxisCommunicators& operator=(const AxisCommunicators&) = delete;

  // The communicator along an axis; what goes through it counts as `traffic_class`.
  // Errors: kInvalidArgument for an axis that the mesh lacks.
  Communicator& along(std::string_view axis, TrafficClass traffic_class) const;

  // This rank's end of the channel between two places along axes, innermost first, one of which is
  // its own, at equal places along the others; what it sends counts as `traffic_class`, on the
  // outermost axis on which the places differ. The first call makes it, as World::channel(); any
  // thread may call. `mover` works in the memory of its transfers; borrowed. Errors: as
  // World::channel(); kInvalidArgument for an axis that the mesh lacks, a place outside the axes,
  // and another class or mover than before.
  Channel& channel(const AxisSizes& axes,
                   const ChannelPlaces& places,
                   TrafficClass traffic_class,
                   const Mover& mover = host_mover());

  // What this rank has sent so far, by axis. Any thread may ask.
  Traffic sent() const;

  // Counts it among that: of axes of the mesh.
  void add_sent(const Traffic& more);

 private:
  struct Axis {
    std::unique_ptr<Communicator> communicator;
    std::array<std::unique_ptr<CountedCommunicator>, kNumTrafficClasses> counted;
  };

  struct AxisChannel {
    Channel* channel;
    TrafficClass traffic_class;
    const Mover* mover;
  };

  Channel* make_channel(const AxisSizes& axes,
                        const ChannelPlaces& places,
                        TrafficClass counted_as,
                        const Mover& mover);

  World& world_;
  Mesh mesh_;
  std::int64_t generation_;
  std::map<std::string, Axis, std::less<>> axes_;

  std::mutex mutex_;  // guards what follows
  std::map<std::pair<AxisSizes, ChannelPlaces>, AxisChannel> channels_;
  std::map<ChannelKey, std::unique_ptr<Channel>> made_;  // those
};

}  // namespace tessera
