#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/comm/communicator.h"
#include "tessera/mesh/mesh.h"

namespace tessera {

// A rank's communicators along every axis of the mesh.
class AxisCommunicators {
 public:
  // Every rank of the run makes one. Borrows `world`. Errors: kInvalidConfig where the mesh has
  // another number of ranks than the run.
  AxisCommunicators(World& world, const Mesh& mesh);

  // Errors: kInvalidArgument for an axis that the mesh lacks.
  Communicator& along(std::string_view axis) const;

 private:
  std::map<std::string, std::unique_ptr<Communicator>, std::less<>> communicators_;
};

}  // namespace tessera
