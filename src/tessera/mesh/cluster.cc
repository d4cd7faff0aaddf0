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
constexpr std::string_view kFlops = "FLOP/s";

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

double read_quantity(const TomlSection& section,
                     std::string_view key,
                     std::string_view unit,
                     std::string_view example) {
  const std::string expected =
      format("a number of {}, at least 0 (0: not known), or text such as \"{}\"", unit, example);
  const toml::node& node = require(section, key, expected);
  std::optional<double> value = node.value<double>();
  if (const auto* text = node.as_string()) {
    value = parse_quantity(text->get(), unit);
  }
  if (!value || !std::isfinite(*value) || *value < 0) {
    refuse(section, key, node, expected);
  }
  return *value;
}

std::int64_t read_bytes(const TomlSection& section, std::string_view key) {
  constexpr double kMaxBytes = 9007199254740992.0;  // 2^53: integers up to here are exact in f64
  constexpr std::string_view kExample = "64 GB";
  const double bytes = read_quantity(section, key, kBytes, kExample);
  if (bytes != std::floor(bytes) || bytes > kMaxBytes) {
    refuse(section, key, require(section, key, ""), "whole bytes, at most 8 PiB");
  }
  return static_cast<std::int64_t>(bytes);
}

Level read_level(const TomlSection& level) {
  refuse_unknown_keys(
      level, std::to_array<std::string>({"name", "size", "bandwidth", "latency", "shared"}));
  return {.name = read_level_name(level),
          .size = read_integer(level, "size", 1, kMaxDevices),
          .bandwidth = read_quantity(level, "bandwidth", kBytesPerSecond, "200 GB/s"),
          .latency = read_quantity(level, "latency", kSeconds, "2 us"),
          .shared = read_flag(level, "shared")};
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

std::string quantity(double value, std::string_view unit) {
  const std::optional<std::string> text = format_quantity(value, unit);
  return text ? toml_string(*text) : toml_number(value);
}

}  // namespace

DeviceSpec read_device(const TomlSection& device) {
  refuse_unknown_keys(device,
                      std::to_array<std::string>({"name", "memory", "memory_bandwidth", "peak"}));
  const TomlSection peak =
      require_table(device, "peak", "a table such as { f32 = \"67 TFLOP/s\", bf16 = 0 }");
  refuse_unknown_keys(peak, std::to_array<std::string>({"f32", "bf16"}));
  return {
      .name = read_text(device, "name"),
      .memory_bytes = read_bytes(device, "memory"),
      .memory_bandwidth = read_quantity(device, "memory_bandwidth", kBytesPerSecond, "1.6 TB/s"),
      .peak_flops = {.f32 = read_quantity(peak, "f32", kFlops, "67 TFLOP/s"),
                     .bf16 = read_quantity(peak, "bf16", kFlops, "989 TFLOP/s")}};
}

std::string to_toml(const DeviceSpec& device) {
  return format("name = {}\nmemory = {}\nmemory_bandwidth = {}\npeak = {{ f32 = {}, bf16 = {} }}\n",
                toml_string(device.name),
                quantity(static_cast<double>(device.memory_bytes), kBytes),
                quantity(device.memory_bandwidth, kBytesPerSecond),
                quantity(device.peak_flops.f32, kFlops),
                quantity(device.peak_flops.bf16, kFlops));
}

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
  refuse_unknown_keys(file, std::to_array<std::string>({"name", "device", "levels"}));
  return {.name = read_text(file, "name"),
          .device = read_device(require_table(file, "device", "a section [device]")),
          .levels = read_levels(file)};
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
    text += format("bandwidth = {}\n", quantity(level.bandwidth, kBytesPerSecond));
    text += format("latency = {}\n", quantity(level.latency, kSeconds));
    text += level.shared ? "shared = true\n" : "";
  }
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
