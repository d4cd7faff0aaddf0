#pragma once

#include <cstdint>
#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera {

struct LocalOptions {
  double deadline_seconds = 60;  // for every wait of a collective
};

// The ranks of a run as threads of this process, which read each other's memory: no copy but the
// one that the result needs.
class LocalWorld {
 public:
  explicit LocalWorld(std::int64_t num_ranks, const LocalOptions& options = {});
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  std::int64_t num_ranks() const;

  // The view of `rank`, for its thread; lives no longer than this object.
  std::unique_ptr<World> join(std::int64_t rank);

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace tessera
