#pragma once

#include <string>
#include <string_view>

#include "tessera/ir/dtype.h"
#include "tessera/mesh/device_spec.h"
#include "tessera/ops/work.h"

namespace tessera {

// How long a device takes for kernels that nothing disturbs, by its figures and its curve. In
// seconds, with B the memory bandwidth and R the peak of a dtype in FLOP/s:
//   stream     bytes / (B * stream) + kernel; those that lie in the cache of a host's cores come at
//              its bandwidth in place of B; and not shorter than FLOP / (R * vector), R of f32
//   gather     as a stream at kGatherShare of its speed
//   product    the longer of a stream of its bytes and, with its other FLOP over R * vector, the
//              fastest tile's
//              ceil(tiles / units) * 2 * rows * columns * (k + k_half)
//                * (1 + tile_half / reuse) * units / (R * matmul),
//              reuse = rows * columns / (rows + columns); without tiles
//              2 * m * n * (k + k_half) / (R * matmul)
//   attention  (a host's cores compute it in f32) the longer of a stream of its bytes and
//              FLOP * (1 + half / keys) / (R * forward), keys of a mean query; backward over
//              `backward`, too
// Sources: waves of tiles: NVIDIA, Matrix Multiplication Background User's Guide, chapter
// "Dimension Quantization Effects". What is lost at the ends of sums, at the sides of tiles and
// with few keys: the half-performance length of Hockney & Jesshope 1981, with which a rate is r /
// (1 + half / n).
class DeviceTime {
 public:
  // `source`: the cluster's file, for errors (Cluster::source). Errors: kInvalidConfig with the
  // file and the key where the memory bandwidth is not known.
  explicit DeviceTime(const DeviceSpec& device, std::string_view source = {});

  // Whether the device has no curve, so that a usual one stands in.
  bool is_estimate() const { return !device_.curve; }

  // `cached`: the share of the bytes that lie in the cache. 0 for a wire. A product of 8-bit floats
  // that the device has no peak for, or whose rows kAlignment does not divide, is what backends
  // make of it: both factors are widened to bf16 (f32 where there are no tiles, as on CPUs),
  // multiplied, and the sums scaled. Errors: kInvalidConfig with the file and the key where the
  // peak of what is multiplied is not known.
  double seconds(const Work& work, double cached = 0.0) const;
  double seconds(const Works& works, double cached = 0.0) const;

  // Of the bytes alone; and of those that do not lie in the cache.
  double memory_seconds(const Work& work, double cached = 0.0) const;
  double uncached_seconds(const Work& work, double cached) const;

 private:
  double elementwise_seconds(const Work& work) const;
  double peak(DType dtype) const;
  bool is_widened(const Work& work) const;
  double product_seconds(const Work& work) const;
  double attention_seconds(const Work& work) const;

  DeviceSpec device_;
  DeviceCurve curve_;
  std::string source_;
};

}  // namespace tessera
