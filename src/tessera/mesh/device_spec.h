#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct TomlSection;

// What kernels make of a chip's figures: constants that are measured or fitted. cost/device_time.h
// has the formulas and their sources. Shares are above 0 and at most 1.
struct DeviceCurve {
  // Shares of the peak that a product would reach whose sums and tiles had no ends, by dtype of the
  // factors. 0: that of bf16.
  struct Matmul {
    double f32 = 0.0;
    double bf16 = 0.0;
    double f8 = 0.0;

    friend bool operator==(const Matmul&, const Matmul&) = default;
  };

  struct Attention {
    double forward = 0.0;   // share of the peak that is reached where a query has many keys
    double backward = 0.0;  // FLOP/s of backward over those of forward
    double half = 0.0;      // keys of a query with which half of that is reached

    friend bool operator==(const Attention&, const Attention&) = default;
  };

  Matmul matmul = {};
  double k_half = 0.0;     // terms of a sum with which half of a product's speed is reached
  double tile_half = 0.0;  // elements: reuse, rows * columns / (rows + columns), of such a tile
  double stream = 0.0;     // share of the memory bandwidth
  double kernel = 0.0;     // seconds that a kernel takes beside its work
  Attention attention = {};
  double vector = 0.0;  // share of the f32 peak at which what is no product computes; 0: it takes
                        // no time beside its bytes
  double comm_share = 0.0;  // of the device, which a library's collective takes meanwhile

  friend bool operator==(const DeviceCurve&, const DeviceCurve&) = default;
};

// What one device can do at best, as its maker says; figures that are 0 are not known.
struct DeviceSpec {
  struct PeakFlops {
    double f32 = 0.0;   // FLOP/s
    double bf16 = 0.0;  // FLOP/s
    double f8 = 0.0;    // FLOP/s

    friend bool operator==(const PeakFlops&, const PeakFlops&) = default;
  };

  // What a unit computes at a time of the result of a product.
  struct Tile {
    std::int64_t rows = 0;
    std::int64_t columns = 0;

    friend bool operator==(const Tile&, const Tile&) = default;
  };

  std::string name;
  std::int64_t memory_bytes = 0;
  double memory_bandwidth = 0.0;          // bytes/s
  PeakFlops peak_flops = {};              // of dense matrix products, by dtype of the factors
  std::int64_t units = 0;                 // that compute tiles side by side; 0 without tiles alone
  std::vector<Tile> tiles = {};           // elements of those there are kernels for
  double host_link = 0.0;                 // bytes/s to the host's memory, in each direction
  std::optional<DeviceCurve> curve = {};  // none: what is said of times are estimates

  // Of cores of a host, which no [device] says but [host] (device_of() in
  // simulate/timed_program.h).
  bool is_cores = false;         // what is no product computes in f32 whatever its dtype
  double cache_bandwidth = 0.0;  // bytes/s of what lies in the cache; 0: as of the memory's

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

// A device as the section [device] of a cluster file has it (docs/formats.md), and as text: its
// keys and the section [device.curve] behind them. Errors: kInvalidConfig with file, line and
// column, what was found and what was expected.
DeviceSpec read_device(const TomlSection& device);
std::string to_toml(const DeviceSpec& device);

}  // namespace tessera
