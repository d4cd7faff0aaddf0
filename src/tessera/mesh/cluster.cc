#include "tessera/mesh/cluster.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/toml.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

constexpr std::int64_t kMaxDevices = std::numeric_limits<std::int32_t>::max();

constexpr std::string_view kBytes = "B";
constexpr std::string_view kBytesPerSecond = "B/s";
constexpr std::string_view kSeconds = "s";
constexpr std::string_view kFlops = "FLOP/s";

// A table of the file, with what messages need: `path` is its name, with the dot that stands before
// a key ("device.", "levels."), empty for the file's own keys.
struct Section {
  const toml::table& table;
  std::string_view source;
  std::string path;

  std::string place() const { return toml_place(source, table.source()); }
};

// "integer 7", "string "abc"", "table".
std::string describe(const toml::node& node) {
  if (const auto* integer = node.as_integer()) {
    return format("integer {}", integer->get());
  }
  if (const auto* number = node.as_floating_point()) {
    return format("number {}", toml_number(number->get()));
  }
  if (const auto* text = node.as_string()) {
    return format("string {}", toml_string(text->get()));
  }
  return toml_type(node);
}

[[noreturn]] void refuse(const Section& section,
                         std::string_view key,
                         const toml::node& found,
                         std::string_view expected) {
  fail(ErrorCode::kInvalidConfig,
       "{}: {}{}: found {}, expected {}",
       toml_place(section.source, found.source()),
       section.path,
       key,
       describe(found),
       expected);
}

void refuse_unknown_keys(const Section& section, std::initializer_list<std::string> known) {
  for (const auto& entry : section.table) {
    const toml::key& key = entry.first;
    TESSERA_REQUIRE(std::ranges::find(known, key.str()) != known.end(),
                    ErrorCode::kInvalidConfig,
                    "{}: unknown key \"{}{}\"{}",
                    toml_place(section.source, key.source()),
                    section.path,
                    key.str(),
                    did_you_mean(key.str(), {known.begin(), known.size()}));
  }
}

const toml::node& require(const Section& section, std::string_view key, std::string_view expected) {
  const toml::node* node = section.table.get(key);
  TESSERA_REQUIRE(node != nullptr,
                  ErrorCode::kInvalidConfig,
                  "{}: {}{} is missing, expected {}",
                  section.place(),
                  section.path,
                  key,
                  expected);
  return *node;
}

Section require_table(const Section& section, std::string_view key, std::string_view expected) {
  const toml::node& node = require(section, key, expected);
  if (!node.is_table()) {
    refuse(section, key, node, expected);
  }
  return {*node.as_table(), section.source, format("{}{}.", section.path, key)};
}

std::string read_text(const Section& section, std::string_view key) {
  constexpr std::string_view kExpected = "string";
  const toml::node& node = require(section, key, kExpected);
  if (!node.is_string()) {
    refuse(section, key, node, kExpected);
  }
  return node.as_string()->get();
}

// A level's name is part of axis names ("data.node") and stands where a number may stand.
std::string read_level_name(const Section& section) {
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

std::int64_t read_size(const Section& section, std::string_view key) {
  const std::string expected = format("integer from 1 to {}", kMaxDevices);
  const toml::node& node = require(section, key, expected);
  const auto* integer = node.as_integer();
  if (integer == nullptr || integer->get() < 1 || integer->get() > kMaxDevices) {
    refuse(section, key, node, expected);
  }
  return integer->get();
}

bool read_flag(const Section& section, std::string_view key) {
  const toml::node* node = section.table.get(key);
  if (node != nullptr && !node->is_boolean()) {
    refuse(section, key, *node, "true or false");
  }
  return node != nullptr && node->as_boolean()->get();
}

double read_quantity(const Section& section,
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

std::int64_t read_bytes(const Section& section, std::string_view key) {
  constexpr double kMaxBytes = 9007199254740992.0;  // 2^53: integers up to here are exact in f64
  constexpr std::string_view kExample = "64 GB";
  const double bytes = read_quantity(section, key, kBytes, kExample);
  if (bytes != std::floor(bytes) || bytes > kMaxBytes) {
    refuse(section, key, require(section, key, ""), "whole bytes, at most 8 PiB");
  }
  return static_cast<std::int64_t>(bytes);
}

DeviceSpec read_device(const Section& device) {
  refuse_unknown_keys(device, {"name", "memory", "memory_bandwidth", "peak"});
  const Section peak =
      require_table(device, "peak", "a table such as { f32 = \"67 TFLOP/s\", bf16 = 0 }");
  refuse_unknown_keys(peak, {"f32", "bf16"});
  return {
      .name = read_text(device, "name"),
      .memory_bytes = read_bytes(device, "memory"),
      .memory_bandwidth = read_quantity(device, "memory_bandwidth", kBytesPerSecond, "1.6 TB/s"),
      .peak_flops = {.f32 = read_quantity(peak, "f32", kFlops, "67 TFLOP/s"),
                     .bf16 = read_quantity(peak, "bf16", kFlops, "989 TFLOP/s")}};
}

Level read_level(const Section& level) {
  refuse_unknown_keys(level, {"name", "size", "bandwidth", "latency", "shared"});
  return {.name = read_level_name(level),
          .size = read_size(level, "size"),
          .bandwidth = read_quantity(level, "bandwidth", kBytesPerSecond, "200 GB/s"),
          .latency = read_quantity(level, "latency", kSeconds, "2 us"),
          .shared = read_flag(level, "shared")};
}

std::vector<Level> read_levels(const Section& file) {
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
    const Section section{*element.as_table(), file.source, "levels."};
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

std::int64_t Cluster::num_devices() const {
  std::int64_t product = 1;
  for (const Level& level : levels) {
    product *= level.size;
  }
  return product;
}

Cluster parse_cluster(std::string_view text, std::string_view source) {
  const toml::table table = parse_toml(text, source);
  const Section file{table, source, ""};
  refuse_unknown_keys(file, {"name", "device", "levels"});
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
  const DeviceSpec& device = cluster.device;
  std::string text = format("name = {}\n\n[device]\n", toml_string(cluster.name));
  text += format("name = {}\n", toml_string(device.name));
  text += format("memory = {}\n", quantity(static_cast<double>(device.memory_bytes), kBytes));
  text += format("memory_bandwidth = {}\n", quantity(device.memory_bandwidth, kBytesPerSecond));
  text += format("peak = {{ f32 = {}, bf16 = {} }}\n",
                 quantity(device.peak_flops.f32, kFlops),
                 quantity(device.peak_flops.bf16, kFlops));
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
