#pragma once

#include <memory>

#include "tessera/backend/backend.h"
#include "tessera/comm/axis_communicators.h"
#include "tessera/comm/communicator.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/traffic.h"

namespace tessera {

// A rank's CPU backend and what it talks to the other ranks by: each of its streams has groups of
// its own along the mesh's axes.
class RankBackend {
 public:
  // Every rank of the run makes one, on its own thread. Borrows `world`.
  RankBackend(World& world, const Mesh& mesh, int threads);

  Backend& operator*() const { return *backend_; }

  Backend* operator->() const { return backend_.get(); }

  // What this rank has sent so far, by mesh axis.
  Traffic sent() const;

 private:
  AxisCommunicators compute_;
  AxisCommunicators comm_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace tessera
