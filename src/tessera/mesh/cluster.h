#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/device_spec.h"

namespace tessera {

// One ring of a cluster's bandwidth hierarchy: `size` groups of the level below (of the innermost
// level: devices) that reach each other at this bandwidth. Figures that are 0 are not known.
struct Level {
  std::string name;         // a letter, then letters, digits, '_' or '-'
  std::int64_t size = 1;    // groups of the level below in one group of this level
  double bandwidth = 0.0;   // bytes/s in each direction, of each device or of each shared link
  double latency = 0.0;     // seconds
  bool shared = false;      // each group of the level below has one link, which its devices share
  double half = 0.0;        // bytes of a collective at which half of `efficiency` is reached
  double efficiency = 0.0;  // share of the bandwidth that large collectives reach; above 1 only
                            // with `switch_reduces`
  bool switch_reduces = false;  // the switches add up, which saves bytes

  friend bool operator==(const Level&, const Level&) = default;
};

// What ranks share that are threads of one machine; figures that are 0 are not known.
struct HostSpec {
  std::int64_t cores = 0;
  double memory_bandwidth = 0.0;  // bytes/s
  double cache_bytes = 0.0;       // of the last cache, of all cores
  double cache_bandwidth = 0.0;   // bytes/s of all cores from it

  friend bool operator==(const HostSpec&, const HostSpec&) = default;
};

// Bytes/s of one NVMe disk, where nothing says more.
inline constexpr double kUsualDisk = 2e9;

// Likewise of PCIe 4 x16, as copies between a device and its host reach it.
inline constexpr double kUsualHostLink = 26e9;

struct Cluster {
  std::string name;
  DeviceSpec device;
  std::vector<Level> levels;  // innermost first; at least one
  HostSpec host = {};
  double spread = 0.0;             // standard deviation of devices' speeds, over the speed
  double device_hour_usd = 0.0;    // what a device costs
  double storage_bandwidth = 0.0;  // bytes/s at which all ranks together write a checkpoint
  double disk_bandwidth = 0.0;     // bytes/s that a machine's own disk reads and writes in all
  std::string curve_source = {};   // where the device's curve is from, in words
  std::string source = {};         // the file that this was read from, for errors; empty: none

  // Product of the sizes of all levels.
  std::int64_t num_devices() const;

  friend bool operator==(const Cluster&, const Cluster&) = default;
};

// Reads the TOML form that docs/formats.md describes. `source` names the text in errors, here and
// in those of others (Cluster::source).
// Errors: kInvalidConfig with file, line and column, what was found and what was expected.
Cluster parse_cluster(std::string_view text, std::string_view source);

// The same of a file. Errors: as above, and kInvalidConfig where it cannot be read.
Cluster load_cluster(const std::filesystem::path& path);

// As TOML; parses back to an equal cluster, given its source.
std::string to_toml(const Cluster& cluster);

// The cluster of a run without a cluster file: one level, "local", of `ranks` devices, about which
// nothing else is known. Errors: kInvalidArgument unless ranks >= 1.
Cluster local_cluster(std::int64_t ranks);

}  // namespace tessera
