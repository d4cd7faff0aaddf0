#include "tessera/mesh/cluster.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/toml_section.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

constexpr std::int64_t kMaxDevices = std::numeric_limits<std::int32_t>::max();

constexpr std::string_view kBytes = "B";
constexpr std::string_view kBytesPerSecond = "B/s";
constexpr std::string_view kSeconds = "s";
constexpr std::string_view kDollars = "USD";

// A level's name is part of axis names ("data.node") and stands where a number may stand.
std::string read_level_name(const TomlSection& section) {
  constexpr std::string_view kKey = "name";
  std::string name = read_text(section, kKey);
  const auto is_letter = [](unsigned char c) { return c < 0x80 && std::isalpha(c) != 0; };
  const auto may_follow = [&](unsigned char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  if (name.empty() || !is_letter(static_cast<unsigned char>(name[0])) ||
      !std::ranges::all_of(name, may_follow)) {
    refuse(section,
           kKey,
           require(section, kKey, ""),
           "a letter, then letters, digits, '_' or '-', such as \"node\"");
  }
  return name;
}

// Keys of a level that say what large collectives make of its bandwidth. Beyond it they come only
// where switches save bytes.
void read_level_curve(const TomlSection& section, Level& level) {
  for (const std::string_view key : {"half", "efficiency", "switch_reduces"}) {
    const bool says_something = key != "switch_reduces" || level.switch_reduces;
    if (has(section, key) && says_something && level.bandwidth == 0.0) {
      refuse(section, key, require(section, key, ""), "none, since the bandwidth is not known");
    }
  }
  if (has(section, "half")) {
    level.half = read_quantity(section, "half", kBytes, "9.9 MB");
  }
  if (has(section, "efficiency")) {
    level.efficiency = read_number(
        section,
        "efficiency",
        {.least = std::numeric_limits<double>::min(),
         .most = level.switch_reduces ? 2.0 : 1.0,
         .expected = level.switch_reduces
                         ? "a share: a number above 0, at most 2"
                         : "a share: a number above 0, at most 1 without switch_reduces"});
  }
}

Level read_level(const TomlSection& level) {
  refuse_unknown_keys(level,
                      std::to_array<std::string>({"name",
                                                  "size",
                                                  "bandwidth",
                                                  "latency",
                                                  "shared",
                                                  "half",
                                                  "efficiency",
                                                  "switch_reduces"}));
  Level result = {.name = read_level_name(level),
                  .size = read_integer(level, "size", 1, kMaxDevices),
                  .bandwidth = read_quantity(level, "bandwidth", kBytesPerSecond, "200 GB/s"),
                  .latency = read_quantity(level, "latency", kSeconds, "2 us"),
                  .shared = read_flag(level, "shared"),
                  .switch_reduces = read_flag(level, "switch_reduces")};
  read_level_curve(level, result);
  return result;
}

std::vector<Level> read_levels(const TomlSection& file) {
  constexpr std::string_view kKey = "levels";
  constexpr std::string_view kExpected = "one [[levels]] table or more, innermost first";
  const toml::node& node = require(file, kKey, kExpected);
  const toml::array* array = node.as_array();
  if (array == nullptr || array->empty()) {
    refuse(file, kKey, node, kExpected);
  }
  std::vector<Level> levels;
  std::set<std::string> names;
  std::int64_t devices = 1;
  for (const toml::node& element : *array) {
    if (!element.is_table()) {
      refuse(file, kKey, element, kExpected);
    }
    const TomlSection section{*element.as_table(), file.source, "levels."};
    Level level = read_level(section);
    if (!names.insert(level.name).second) {
      refuse(section, "name", require(section, "name", ""), "a name that no level before it has");
    }
    if (level.size > kMaxDevices / devices) {
      refuse(section,
             "size",
             require(section, "size", ""),
             format("at most {}, since there are {} devices below this level and at most {} in all",
                    kMaxDevices / devices,
                    devices,
                    kMaxDevices));
    }
    devices *= level.size;
    levels.push_back(std::move(level));
  }
  return levels;
}

HostSpec read_host(const TomlSection& file) {
  const TomlSection host = require_table(file, "host", "a section [host]");
  refuse_unknown_keys(
      host, std::to_array<std::string>({"cores", "memory_bandwidth", "cache", "cache_bandwidth"}));
  HostSpec spec = {
      .cores = read_integer(host, "cores", 1, kMaxDevices),
      .memory_bandwidth = read_quantity(host, "memory_bandwidth", kBytesPerSecond, "46.7 GB/s")};
  if (has(host, "cache") || has(host, "cache_bandwidth")) {
    spec.cache_bytes = read_quantity(host, "cache", kBytes, "32 MB");
    spec.cache_bandwidth = read_quantity(host, "cache_bandwidth", kBytesPerSecond, "150 GB/s");
  }
  return spec;
}

double read_spread(const TomlSection& file) {
  const TomlSection noise = require_table(file, "noise", "a section [noise]");
  refuse_unknown_keys(noise, std::to_array<std::string>({"spread"}));
  return read_number(
      noise, "spread", {.least = 0.0, .most = 1.0, .expected = "a share: a number from 0 to 1"});
}

double read_price(const TomlSection& file) {
  const TomlSection cost = require_table(file, "cost", "a section [cost]");
  refuse_unknown_keys(cost, std::to_array<std::string>({"per_device_hour"}));
  return read_quantity(cost, "per_device_hour", kDollars, "2.50 USD");
}

void read_storage(const TomlSection& file, Cluster& cluster) {
  const TomlSection storage = require_table(file, "storage", "a section [storage]");
  refuse_unknown_keys(storage, std::to_array<std::string>({"bandwidth", "disk"}));
  const bool has_disk = has(storage, "disk");
  if (has_disk) {
    cluster.disk_bandwidth = read_quantity(storage, "disk", kBytesPerSecond, "2 GB/s");
  }
  if (!has_disk || has(storage, "bandwidth")) {
    cluster.storage_bandwidth = read_quantity(storage, "bandwidth", kBytesPerSecond, "100 GB/s");
  }
}

std::string storage_text(const Cluster& cluster) {
  std::string text;
  const auto add = [&](std::string_view key, double bandwidth) {
    text +=
        bandwidth > 0.0 ? format("{} = {}\n", key, toml_quantity(bandwidth, kBytesPerSecond)) : "";
  };
  add("bandwidth", cluster.storage_bandwidth);
  add("disk", cluster.disk_bandwidth);
  return text.empty() ? "" : "\n[storage]\n" + text;
}

std::string host_text(const HostSpec& host) {
  const std::string cache = host.cache_bytes == 0.0
                                ? ""
                                : format("cache = {}\ncache_bandwidth = {}\n",
                                         toml_quantity(host.cache_bytes, kBytes),
                                         toml_quantity(host.cache_bandwidth, kBytesPerSecond));
  return host.cores == 0 ? ""
                         : format("\n[host]\ncores = {}\nmemory_bandwidth = {}\n{}",
                                  host.cores,
                                  toml_quantity(host.memory_bandwidth, kBytesPerSecond),
                                  cache);
}

std::string read_source(const TomlSection& file, const DeviceSpec& device) {
  const TomlSection source = require_table(file, "source", "a section [source]");
  refuse_unknown_keys(source, std::to_array<std::string>({"curve"}));
  std::string text = read_text(source, "curve");
  if (!device.curve) {
    refuse(source, "curve", require(source, "curve", ""), "none, since there is no [device.curve]");
  }
  return text;
}

}  // namespace

std::int64_t Cluster::num_devices() const {
  std::int64_t product = 1;
  for (const Level& level : levels) {
    product *= level.size;
  }
  return product;
}

Cluster parse_cluster(std::string_view text, std::string_view source) {
  const toml::table table = parse_toml(text, source);
  const TomlSection file{table, source, ""};
  refuse_unknown_keys(
      file,
      std::to_array<std::string>(
          {"name", "device", "levels", "host", "noise", "cost", "storage", "source"}));
  Cluster cluster = {.name = read_text(file, "name"),
                     .device = read_device(require_table(file, "device", "a section [device]")),
                     .levels = read_levels(file),
                     .source = std::string(source)};
  if (has(file, "host")) {
    cluster.host = read_host(file);
  }
  if (has(file, "noise")) {
    cluster.spread = read_spread(file);
  }
  if (has(file, "cost")) {
    cluster.device_hour_usd = read_price(file);
  }
  if (has(file, "storage")) {
    read_storage(file, cluster);
  }
  if (has(file, "source")) {
    cluster.curve_source = read_source(file, cluster.device);
  }
  return cluster;
}

Cluster load_cluster(const std::filesystem::path& path) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& error) {
    // A cluster file that cannot be read is a mistake in the config, not bad data.
    fail(ErrorCode::kInvalidConfig, "cluster file: {}", error.message());
  }
  return parse_cluster(text, path.string());
}

std::string to_toml(const Cluster& cluster) {
  std::string text =
      format("name = {}\n\n[device]\n{}", toml_string(cluster.name), to_toml(cluster.device));
  for (const Level& level : cluster.levels) {
    text += format("\n[[levels]]\nname = {}\n", toml_string(level.name));
    text += format("size = {}\n", level.size);
    text += format("bandwidth = {}\n", toml_quantity(level.bandwidth, kBytesPerSecond));
    text += format("latency = {}\n", toml_quantity(level.latency, kSeconds));
    text += level.shared ? "shared = true\n" : "";
    text += level.half > 0.0 ? format("half = {}\n", toml_quantity(level.half, kBytes)) : "";
    text +=
        level.efficiency > 0.0 ? format("efficiency = {}\n", toml_number(level.efficiency)) : "";
    text += level.switch_reduces ? "switch_reduces = true\n" : "";
  }
  text += host_text(cluster.host);
  text +=
      cluster.spread > 0.0 ? format("\n[noise]\nspread = {}\n", toml_number(cluster.spread)) : "";
  text += cluster.device_hour_usd > 0.0 ? format("\n[cost]\nper_device_hour = {}\n",
                                                 toml_quantity(cluster.device_hour_usd, kDollars))
                                        : "";
  text += storage_text(cluster);
  text += cluster.curve_source.empty()
              ? ""
              : format("\n[source]\ncurve = {}\n", toml_string(cluster.curve_source));
  return text;
}

Cluster local_cluster(std::int64_t ranks) {
  TESSERA_REQUIRE(ranks >= 1,
                  ErrorCode::kInvalidArgument,
                  "a local cluster of {} ranks, expected at least 1",
                  ranks);
  return {.name = "local", .device = {.name = "local"}, .levels = {{"local", ranks}}};
}

}  // namespace tessera
