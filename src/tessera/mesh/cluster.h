#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct TomlSection;

// One ring of a cluster's bandwidth hierarchy: `size` groups of the level below (of the innermost
// level: devices) that reach each other at this bandwidth. Figures that are 0 are not known.
struct Level {
  std::string name;        // a letter, then letters, digits, '_' or '-'
  std::int64_t size = 1;   // groups of the level below in one group of this level
  double bandwidth = 0.0;  // bytes/s in each direction, of each device or of each shared link
  double latency = 0.0;    // seconds
  bool shared = false;     // each group of the level below has one link, which its devices share

  friend bool operator==(const Level&, const Level&) = default;
};

// What one device can do at best; figures that are 0 are not known.
struct DeviceSpec {
  struct PeakFlops {
    double f32 = 0.0;   // FLOP/s
    double bf16 = 0.0;  // FLOP/s

    friend bool operator==(const PeakFlops&, const PeakFlops&) = default;
  };

  std::string name;
  std::int64_t memory_bytes = 0;
  double memory_bandwidth = 0.0;  // bytes/s
  PeakFlops peak_flops = {};      // of dense matrix products, by compute dtype

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

struct Cluster {
  std::string name;
  DeviceSpec device;
  std::vector<Level> levels;  // innermost first; at least one

  // Product of the sizes of all levels.
  std::int64_t num_devices() const;

  friend bool operator==(const Cluster&, const Cluster&) = default;
};

// Reads the TOML form that docs/formats.md describes. `source` names the text in errors.
// Errors: kInvalidConfig with file, line and column, what was found and what was expected.
Cluster parse_cluster(std::string_view text, std::string_view source);

// The same of a file. Errors: as above, and kInvalidConfig where it cannot be read.
Cluster load_cluster(const std::filesystem::path& path);

// A device as the section [device] of a cluster file has it, and its keys as text. Errors: as
// above.
DeviceSpec read_device(const TomlSection& device);
std::string to_toml(const DeviceSpec& device);

// As TOML; parses back to an equal cluster.
std::string to_toml(const Cluster& cluster);

// The cluster of a run without a cluster file: one level, "local", of `ranks` devices, about which
// nothing else is known. Errors: kInvalidArgument unless ranks >= 1.
Cluster local_cluster(std::int64_t ranks);

}  // namespace tessera
