#include "tessera/train/rank_backend.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/devices.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

constexpr StreamId kComputeStream = StreamId{0};
constexpr StreamId kCommStream = StreamId{1};
constexpr std::int64_t kComputeGeneration = 0;
constexpr std::int64_t kCommGeneration = 1;

CommunicatorOf along(const AxisCommunicators& communicators) {
  return [&](std::string_view axis, TrafficClass traffic_class) -> Communicator& {
    return communicators.along(axis, traffic_class);
  };
}

const Mover& mover_of(const DeviceBackend* device, StreamId stream) {
  return device == nullptr ? host_mover() : device->mover(stream);
}

}  // namespace

std::unique_ptr<Backend> make_run_backend(const std::string& device, int threads) {
  if (device == "cuda") {
    return make_device_backend(0, 1);
  }
  return make_cpu_backend(threads);
}

RankBackend::RankBackend(World& world, const Mesh& mesh, int threads, const std::string& device)
    : RankBackend(world,
                  mesh,
                  threads,
                  device == "cuda" ? make_device_backend(world.rank(), world.size()) : nullptr) {}

RankBackend::RankBackend(World& world,
                         const Mesh& mesh,
                         int threads,
                         std::unique_ptr<DeviceBackend> device)
    : device_(std::move(device)),
      compute_(world, mesh, kComputeGeneration, mover_of(device_.get(), kComputeStream)),
      comm_(world, mesh, kCommGeneration, mover_of(device_.get(), kCommStream)) {
  const auto abort = [&world](std::string_view reason) {
    world.abort(format("rank {} failed: {}", world.rank(), reason));
  };
  if (device_ == nullptr) {
    cpu_ = make_cpu_backend(
        threads, along(compute_), {.communicator_of = along(comm_), .abort = abort});
    return;
  }
  device_->set_communicators(kComputeStream, along(compute_));
  device_->set_communicators(kCommStream, along(comm_));
  device_->set_abort(abort);
}

Traffic RankBackend::sent() const {
  Traffic sent = compute_.sent();
  add(sent, comm_.sent());
  return sent;
}

}  // namespace tessera
