#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/traffic.h"

namespace tessera {

class Communicator;

// This rank's communicator along a mesh axis; what goes through it counts as that class (see
// AxisCommunicators). Errors: kInvalidArgument for an unknown axis.
using CommunicatorOf =
    std::function<Communicator&(std::string_view axis, TrafficClass traffic_class)>;

}  // namespace tessera

namespace tessera::cpu {

class PrimitiveCache;  // oneDNN primitives by attributes and types; backend/cpu/primitive_cache.h

// What CPU kernels of one stream share: the number of threads of its OpenMP team, the primitive
// cache, and communicators. One thread uses a context at a time. Kernels open their parallel
// regions with num_threads(context.threads()), so that own kernels and oneDNN run on one team.
class Context {
 public:
  // Sets the calling thread's OpenMP team size, which oneDNN goes by: the context that runs its
  // products is the last that the rank's thread constructs.
  explicit Context(int threads);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int threads() const { return threads_; }

  PrimitiveCache& primitives() { return *primitives_; }

  // What collectives run on; a context without can run programs of one rank.
  void set_communicators(CommunicatorOf communicator_of);

  // The communicators along `axes` ("data.pair=2 data.node=4", innermost first) of more than one
  // rank; what goes through them counts as that class. They are looked up once; the span stays
  // valid.
  // Errors: kInvalidArgument where the context has no communicator along an axis; kInternal where
  // that has another size.
  std::span<Communicator* const> levels(const std::string& axes, TrafficClass traffic_class);

 private:
  std::vector<Communicator*> find_levels(const std::string& axes, TrafficClass traffic_class) const;

  int threads_;
  std::unique_ptr<PrimitiveCache> primitives_;
  CommunicatorOf communicator_of_;
  std::array<std::map<std::string, std::vector<Communicator*>>, kNumTrafficClasses> levels_;
};

}  // namespace tessera::cpu
