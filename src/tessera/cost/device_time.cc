#include "tessera/cost/device_time.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/cost/constants.h"

namespace tessera {
namespace {

using PeakFlops = DeviceSpec::PeakFlops;

// What stands for a dtype in peaks and shares: 16 bits are all alike.
std::string_view peak_key(DType dtype) {
  return is_float8(dtype) ? "f8" : dtype == DType::kF32 ? "f32" : "bf16";
}

double peak_of(const PeakFlops& peaks, DType dtype) {
  return is_float8(dtype) ? peaks.f8 : dtype == DType::kF32 ? peaks.f32 : peaks.bf16;
}

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

// A product of codes as one of `wide` values: the codes of both factors are widened, and the sums,
// which are f32, scaled while all else that the op reads and writes passes.
Works widened(const Work& codes, DType wide) {
  const auto times = static_cast<double>(codes.times);
  const auto products = static_cast<double>(codes.batch) * times;
  const auto m = static_cast<double>(codes.m);
  const auto n = static_cast<double>(codes.n);
  const auto width = static_cast<std::int64_t>(size_bytes(wide));
  const double values = static_cast<double>(codes.k) * (m + n) * products;
  const double values_bytes = values * static_cast<double>(width);
  const double sums_bytes = m * n * products * sizeof(float);
  const double all_bytes = codes.bytes_read + codes.bytes_written + codes.bytes_again;

  const Work widening = {
      .times = 2 * codes.times, .bytes_read = values, .bytes_written = values_bytes};
  Work product = codes;
  product.dtype = wide;
  product.row_bytes = std::gcd(codes.k * width, codes.n * static_cast<std::int64_t>(sizeof(float)));
  product.bytes_read = values_bytes;
  product.bytes_written = sums_bytes;
  product.bytes_again = 0.0;
  const Work scaling = {.times = codes.times,
                        .bytes_read = sums_bytes,
                        .bytes_written = std::max(all_bytes - values, 0.0)};
  return {widening, product, scaling};
}

}  // namespace

DeviceTime::DeviceTime(const DeviceSpec& device, std::string_view source)
    : device_(device),
      curve_(device.curve.value_or(kUsualCurve)),
      source_(source.empty() ? "the cluster file" : source) {
  TESSERA_REQUIRE(device.memory_bandwidth > 0.0,
                  ErrorCode::kInvalidConfig,
                  "{}: device.memory_bandwidth: found 0, expected the bytes/s of \"{}\", without "
                  "which nothing can be timed",
                  source_,
                  device.name);
}

double DeviceTime::seconds(const Work& work, double cached) const {
  const double kernels = curve_.kernel * static_cast<double>(work.times);
  switch (work.kind) {
    case WorkKind::kProduct:
      if (is_widened(work)) {
        return seconds(widened(work, device_.tiles.empty() ? DType::kF32 : DType::kBF16), cached);
      }
      return std::max(product_seconds(work) + elementwise_seconds(work),
                      memory_seconds(work, cached)) +
             kernels;
    case WorkKind::kAttention:
    case WorkKind::kAttentionBackward:
      return std::max(attention_seconds(work), memory_seconds(work, cached)) + kernels;
    case WorkKind::kStream:
    case WorkKind::kFold:
      return std::max(memory_seconds(work, cached), elementwise_seconds(work)) + kernels;
    case WorkKind::kGather:
      return std::max(memory_seconds(work, cached) / kGatherShare, elementwise_seconds(work)) +
             kernels;
    case WorkKind::kWire:
      break;
  }
  return 0.0;
}

double DeviceTime::seconds(const Works& works, double cached) const {
  double sum = 0.0;
  for (const Work& work : works) {
    sum += seconds(work, cached);
  }
  return sum;
}

double DeviceTime::elementwise_seconds(const Work& work) const {
  return curve_.vector > 0.0 ? work.elementwise_flop / (peak(DType::kF32) * curve_.vector) : 0.0;
}

double DeviceTime::peak(DType dtype) const {
  const double flops = peak_of(device_.peak_flops, dtype);
  TESSERA_REQUIRE(flops > 0.0,
                  ErrorCode::kInvalidConfig,
                  "{}: device.peak.{}: found 0, expected the FLOP/s of \"{}\", since there are "
                  "products in {} to time",
                  source_,
                  peak_key(dtype),
                  device_.name,
                  name(dtype));
  return flops;
}

bool DeviceTime::is_widened(const Work& work) const {
  const bool is_uneven = !device_.tiles.empty() && work.row_bytes % kAlignment != 0;
  return is_float8(work.dtype) && (device_.peak_flops.f8 == 0.0 || is_uneven);
}

// Units take tiles in waves.
double DeviceTime::product_seconds(const Work& work) const {
  const double rate = peak(work.dtype) * share_of(curve_.matmul, work.dtype);
  const double terms = 2.0 * (static_cast<double>(work.k) + curve_.k_half);
  const auto batch = static_cast<double>(work.batch);
  double least = std::numeric_limits<double>::infinity();
  for (const DeviceSpec::Tile& tile : device_.tiles) {
    const double tiles = cover(work.m, tile.rows) * cover(work.n, tile.columns) * batch;
    const auto units = static_cast<double>(device_.units);
    const double waves = std::ceil(tiles / units);
    const auto elements = static_cast<double>(tile.rows * tile.columns);
    const double slowdown = 1.0 + curve_.tile_half / reuse(tile);
    least = std::min(least, waves * terms * elements * slowdown * units / rate);
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
  if (whole.pairs <= 0.0) {
    return 0.0;  // a step of a ring whose keys lie beyond the window
  }
  const double keys = whole.pairs / queries;
  const double share = curve.forward * keys / (keys + curve.half) *
                       (work.kind == WorkKind::kAttentionBackward ? curve.backward : 1.0);
  return flop(whole) / (peak(device_.is_cores ? DType::kF32 : work.dtype) * share);
}

double DeviceTime::memory_seconds(const Work& work, double cached) const {
  const double all = uncached_seconds(work, 0.0);
  if (device_.cache_bandwidth == 0.0) {
    return all;
  }
  const double faster = device_.memory_bandwidth / device_.cache_bandwidth;
  return all * (1.0 - cached + cached * std::min(faster, 1.0));
}

double DeviceTime::uncached_seconds(const Work& work, double cached) const {
  const double part = device_.cache_bandwidth > 0.0 ? 1.0 - cached : 1.0;
  return (work.bytes_read + work.bytes_written + work.bytes_again) * part /
         (device_.memory_bandwidth * curve_.stream);
}

}  // namespace tessera
