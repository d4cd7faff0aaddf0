#include "tessera/cost/device_time.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/cost/constants.h"

namespace tessera {
namespace {

double share_of(const DeviceCurve::Matmul& shares, DType dtype) {
  const double own = is_float8(dtype) ? shares.f8 : dtype == DType::kF32 ? shares.f32 : shares.bf16;
  return own > 0.0 ? own : shares.bf16;
}

// Elements of a tile for each of its loads, of which a row and a column serve all others.
double reuse(const DeviceSpec::Tile& tile) {
  return static_cast<double>(tile.rows * tile.columns) /
         static_cast<double>(tile.rows + tile.columns);
}

// Tiles that cover a side.
double cover(std::int64_t side, std::int64_t tile) {
  const std::int64_t tiles = (side + tile - 1) / tile;
  return static_cast<double>(tiles);
}

}  // namespace

DeviceTime::DeviceTime(const DeviceSpec& device)
    : device_(device), curve_(device.curve.value_or(kUsualCurve)) {
  TESSERA_REQUIRE(device.memory_bandwidth > 0.0,
                  ErrorCode::kInvalidConfig,
                  "nothing can be timed on device \"{}\", whose memory bandwidth is not known: "
                  "give it in the cluster file",
                  device.name);
}

double DeviceTime::seconds(const Work& work) const {
  const double kernels = curve_.kernel * static_cast<double>(work.times);
  switch (work.kind) {
    case WorkKind::kProduct:
      return std::max(product_seconds(work), memory_seconds(work)) + kernels;
    case WorkKind::kAttention:
    case WorkKind::kAttentionBackward:
      return std::max(attention_seconds(work), memory_seconds(work)) + kernels;
    case WorkKind::kStream:
    case WorkKind::kFold:
      return memory_seconds(work) + kernels;
    case WorkKind::kGather:
      return memory_seconds(work) / kGatherShare + kernels;
    case WorkKind::kWire:
      break;
  }
  return 0.0;
}

double DeviceTime::seconds(const Works& works) const {
  double sum = 0.0;
  for (const Work& work : works) {
    sum += seconds(work);
  }
  return sum;
}

double DeviceTime::peak(DType dtype) const {
  const DeviceSpec::PeakFlops& peaks = device_.peak_flops;
  const double flops = is_float8(dtype) ? peaks.f8 : dtype == DType::kF32 ? peaks.f32 : peaks.bf16;
  TESSERA_REQUIRE(flops > 0.0,
                  ErrorCode::kInvalidConfig,
                  "products in {} cannot be timed on device \"{}\", whose peak for them is not "
                  "known: give it in the cluster file",
                  name(dtype),
                  device_.name);
  return flops;
}

// Units take tiles in waves, at the rate that the largest tile reaches; a small one waits for its
// loads.
double DeviceTime::product_seconds(const Work& work) const {
  const double rate = peak(work.dtype) * share_of(curve_.matmul, work.dtype);
  const double terms = 2.0 * (static_cast<double>(work.k) + curve_.k_half);
  const auto batch = static_cast<double>(work.batch);
  double most_reuse = 0.0;
  for (const DeviceSpec::Tile& tile : device_.tiles) {
    most_reuse = std::max(most_reuse, reuse(tile));
  }
  double least = std::numeric_limits<double>::infinity();
  for (const DeviceSpec::Tile& tile : device_.tiles) {
    const double tiles = cover(work.m, tile.rows) * cover(work.n, tile.columns) * batch;
    const double waves = std::ceil(tiles / static_cast<double>(device_.units));
    const auto elements = static_cast<double>(tile.rows * tile.columns);
    const double slowdown =
        (1.0 + curve_.tile_half / reuse(tile)) / (1.0 + curve_.tile_half / most_reuse);
    least = std::min(
        least, waves * terms * elements * slowdown * static_cast<double>(device_.units) / rate);
  }
  if (device_.tiles.empty()) {
    least = terms * static_cast<double>(work.m) * static_cast<double>(work.n) * batch / rate;
  } else if (work.dtype != DType::kF32 && work.row_bytes % kAlignment != 0) {
    least *= kUnalignedTime;
  }
  return least * static_cast<double>(work.times);
}

// At each end of a query's keys that the mask sets, half a tile more than the mask lets through.
double DeviceTime::attention_seconds(const Work& work) const {
  const DeviceCurve::Attention& curve = curve_.attention;
  const double queries = static_cast<double>(work.m) * static_cast<double>(work.batch);
  const double beyond = static_cast<double>(work.borders) * queries * kAttentionTile / 2.0;
  Work whole = work;
  whole.pairs = std::min(work.pairs + beyond, queries * static_cast<double>(work.n));
  const double keys = whole.pairs / queries;
  const double share = curve.forward * keys / (keys + curve.half) *
                       (work.kind == WorkKind::kAttentionBackward ? curve.backward : 1.0);
  return flop(whole) / (peak(work.dtype) * share);
}

double DeviceTime::memory_seconds(const Work& work) const {
  return (work.bytes_read + work.bytes_written + work.bytes_again) /
         (device_.memory_bandwidth * curve_.stream);
}

}  // namespace tessera
