#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/comm/communicator.h"
#include "tessera/comm/counted_communicator.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/traffic.h"

namespace tessera {

// A rank's communicators along every axis of the mesh.
class AxisCommunicators {
 public:
  // Every rank of the run makes one. Borrows `world` and `mover`, which works in the memory of
  // their operations. Errors: kInvalidConfig where the mesh has another number of ranks than the
  // run; as World::group().
  AxisCommunicators(World& world,
                    const Mesh& mesh,
                    std::int64_t generation = 0,
                    const Mover& mover = host_mover());

  // The communicator along an axis; what goes through it counts as `traffic_class`.
  // Errors: kInvalidArgument for an axis that the mesh lacks.
  Communicator& along(std::string_view axis, TrafficClass traffic_class) const;

  // What this rank has sent so far, by axis. Any thread may ask.
  Traffic sent() const;

  // Counts it among that: of axes of the mesh.
  void add_sent(const Traffic& more);

 private:
  struct Axis {
    std::unique_ptr<Communicator> communicator;
    std::array<std::unique_ptr<CountedCommunicator>, kNumTrafficClasses> counted;
  };

  std::map<std::string, Axis, std::less<>> axes_;
};

}  // namespace tessera
