#include "tessera/resolve/kernel_seconds.h"

#include "tessera/cost/device_time.h"
#include "tessera/ops/op.h"
#include "tessera/ops/work.h"
#include "tessera/plan/model_costs.h"

namespace tessera {
namespace {

// The device, or a usual core where nobody says how fast it is.
DeviceSpec known_device(const DeviceSpec& device, DType dtype) {
  constexpr double kUsualFlops = 1e11;
  constexpr double kUsualBandwidth = 1e10;
  if (has_speed(device, dtype) && has_speed(device, DType::kF32)) {
    return device;
  }
  DeviceSpec usual = {.name = "core", .memory_bandwidth = kUsualBandwidth};
  usual.peak_flops = {.f32 = kUsualFlops, .bf16 = kUsualFlops};
  usual.is_cores = true;
  return usual;
}

}  // namespace

double microbatch_seconds(const Graph& graph, const NodeSeconds& seconds) {
  double whole = 0.0;
  for (const Node& node : graph.nodes) {
    const bool is_of_microbatch = node.phase != Phase::kStart && node.phase != Phase::kUpdate;
    whole += is_of_microbatch ? seconds(graph, node) : 0.0;
  }
  return whole;
}

NodeSeconds kernel_seconds(const DeviceSpec& device, DType dtype) {
  return [time = DeviceTime(known_device(device, dtype))](const Graph& graph, const Node& node) {
    return time.seconds(work(*node.op, graph.types(node.operands)));
  };
}

}  // namespace tessera
