#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/backend/device_backend.h"
#include "tessera/comm/axis_communicators.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/nccl/nccl_world.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/traffic.h"

namespace tessera {

struct RunConfig;

// The backend of this process on run.device ("cpu" or "cuda"; "auto" is resolved), without
// communicators.
std::unique_ptr<Backend> make_run_backend(const std::string& device, int threads);

// What the ranks of devices talk by in place of `host`, the world of their run: NcclWorld.
// `options` say on which streams.
using JoinNative =
    std::function<std::unique_ptr<NcclWorld>(World& host, const NcclOptions& options)>;

// A rank's backend and what it talks to the other ranks by: each of its streams has groups of
// its own along the mesh's axes. Those of further streams than two are made when they are first
// asked for, on the CPU alone: devices have none.
class RankBackend {
 public:
  using Wrap = std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend> backend)>;

  // What a run's config says of it; on the CPU what `wrap`, where given, makes of that. Every rank
  // of the run makes one, on its own thread. Borrows `world`.
  RankBackend(World& world, const Mesh& mesh, const RunConfig& config, const Wrap& wrap = nullptr);

  // On the CPU.
  RankBackend(World& world, const Mesh& mesh, int threads);

  // On this device, or the CPU where it is null. Where `join` is given, the device's collectives
  // are those of the world that it makes, for which `options` say how long a wait may last.
  RankBackend(World& world,
              const Mesh& mesh,
              int threads,
              std::unique_ptr<DeviceBackend> device,
              const JoinNative& join = nullptr,
              const WorldOptions& options = {});

  Backend& operator*() const { return device_ ? static_cast<Backend&>(*device_) : *cpu_; }

  Backend* operator->() const { return &**this; }

  // Whether this is one of several ranks that each have a device that times products.
  bool settles_products() const { return device_ != nullptr && device_->shares_product_choices(); }

  // Then all go on with the same algorithms: with what rank 0, which leads, knows, or with what was
  // timed. `from_all` gathers everybody's text, in rank order; every rank of the run calls it.
  using GatherTexts = std::function<std::vector<std::string>(const std::string& text)>;
  void settle_products(ProductChoices which, bool leads, const GatherTexts& from_all);

  // What this rank has sent so far, by mesh axis.
  Traffic sent() const;

 private:
  AxisCommunicators& further(StreamId stream, World& world, const Mesh& mesh);

  std::unique_ptr<DeviceBackend> device_;  // whose movers the communicators use
  std::unique_ptr<NcclWorld> native_;      // whose groups they are, where there is one
  std::unique_ptr<Communicator> meeting_;  // of all ranks, by the host; with native_ alone
  AxisCommunicators compute_;
  AxisCommunicators comm_;
  mutable std::mutex further_mutex_;  // guards further_
  std::map<StreamId, std::unique_ptr<AxisCommunicators>> further_;
  std::unique_ptr<Backend> cpu_;
};

}  // namespace tessera
