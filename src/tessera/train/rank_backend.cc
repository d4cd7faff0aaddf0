#include "tessera/train/rank_backend.h"

#include <cstdint>
#include <string_view>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/devices.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

constexpr std::int64_t kComputeGeneration = 0;
constexpr std::int64_t kCommGeneration = 1;

CommunicatorOf along(const AxisCommunicators& communicators) {
  return [&](std::string_view axis, TrafficClass traffic_class) -> Communicator& {
    return communicators.along(axis, traffic_class);
  };
}

}  // namespace

std::unique_ptr<Backend> make_run_backend(const std::string& device, int threads) {
  return device == "cuda" ? make_device_backend(0) : make_cpu_backend(threads);
}

RankBackend::RankBackend(World& world, const Mesh& mesh, int threads, const std::string& device)
    : compute_(world, mesh, kComputeGeneration), comm_(world, mesh, kCommGeneration) {
  if (device == "cuda") {
    backend_ = make_run_backend(device, threads);
    return;
  }
  backend_ = make_cpu_backend(
      threads,
      along(compute_),
      {.communicator_of = along(comm_), .abort = [&world](std::string_view reason) {
         world.abort(format("rank {} failed: {}", world.rank(), reason));
       }});
}

Traffic RankBackend::sent() const {
  Traffic sent = compute_.sent();
  add(sent, comm_.sent());
  return sent;
}

}  // namespace tessera
