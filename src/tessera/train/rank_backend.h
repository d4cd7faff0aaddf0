#pragma once

#include <memory>
#include <string>

#include "tessera/backend/backend.h"
#include "tessera/backend/device_backend.h"
#include "tessera/comm/axis_communicators.h"
#include "tessera/comm/communicator.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/traffic.h"

namespace tessera {

// The backend on run.device ("cpu" or "cuda"; "auto" is resolved), without communicators.
std::unique_ptr<Backend> make_run_backend(const std::string& device, int threads);

// A rank's backend and what it talks to the other ranks by: each of its streams has groups of
// its own along the mesh's axes.
class RankBackend {
 public:
  // Every rank of the run makes one, on its own thread. Borrows `world`.
  RankBackend(World& world, const Mesh& mesh, int threads, const std::string& device = "cpu");

  // On this device, or the CPU where it is null.
  RankBackend(World& world, const Mesh& mesh, int threads, std::unique_ptr<DeviceBackend> device);

  Backend& operator*() const { return device_ ? static_cast<Backend&>(*device_) : *cpu_; }

  Backend* operator->() const { return &**this; }

  // What this rank has sent so far, by mesh axis.
  Traffic sent() const;

 private:
  std::unique_ptr<DeviceBackend> device_;  // whose movers the communicators use
  AxisCommunicators compute_;
  AxisCommunicators comm_;
  std::unique_ptr<Backend> cpu_;
};

}  // namespace tessera
