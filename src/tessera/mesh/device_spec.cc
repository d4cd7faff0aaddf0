#include "tessera/mesh/device_spec.h"

#include <array>
#include <cmath>
#include <limits>

#include "tessera/base/format.h"
#include "tessera/base/toml_section.h"

namespace tessera {
namespace {

constexpr std::string_view kMemoryUnit = "B";
constexpr std::string_view kBandwidthUnit = "B/s";
constexpr std::string_view kTimeUnit = "s";
constexpr std::string_view kFlopsUnit = "FLOP/s";
constexpr std::int64_t kMaxUnits = 1'000'000;
constexpr double kMaxElements = 1e6;  // of a constant that counts elements

using PeakFlops = DeviceSpec::PeakFlops;

std::int64_t read_bytes(const TomlSection& section, std::string_view key) {
  constexpr double kMaxBytes = 9007199254740992.0;  // 2^53: integers up to here are exact in f64
  constexpr std::string_view kExample = "64 GB";
  const double bytes = read_quantity(section, key, kMemoryUnit, kExample);
  if (bytes != std::floor(bytes) || bytes > kMaxBytes) {
    refuse(section, key, require(section, key, ""), "whole bytes, at most 8 PiB");
  }
  return static_cast<std::int64_t>(bytes);
}

PeakFlops read_peaks(const TomlSection& device) {
  const TomlSection peak =
      require_table(device, "peak", "a table such as { f32 = \"67 TFLOP/s\", bf16 = 0 }");
  refuse_unknown_keys(peak, std::to_array<std::string>({"f32", "bf16", "f8"}));
  return {.f32 = read_quantity(peak, "f32", kFlopsUnit, "67 TFLOP/s"),
          .bf16 = read_quantity(peak, "bf16", kFlopsUnit, "989 TFLOP/s"),
          .f8 = has(peak, "f8") ? read_quantity(peak, "f8", kFlopsUnit, "1979 TFLOP/s") : 0.0};
}

std::vector<DeviceSpec::Tile> read_tiles(const TomlSection& device) {
  constexpr std::string_view kKey = "tiles";
  constexpr std::string_view kExpected =
      "pairs of rows and columns from 1 to 1000000, such as [[128, 256], [64, 64]]";
  const toml::node& node = require(device, kKey, kExpected);
  const toml::array* list = node.as_array();
  if (list == nullptr || list->empty()) {
    refuse(device, kKey, node, kExpected);
  }
  std::vector<DeviceSpec::Tile> tiles;
  for (const toml::node& element : *list) {
    const toml::array* pair = element.as_array();
    const auto side = [&](std::size_t i) {
      const auto* value = pair->get(i)->as_integer();
      return value != nullptr && value->get() <= kMaxUnits ? value->get() : 0;
    };
    if (pair == nullptr || pair->size() != 2 || side(0) < 1 || side(1) < 1) {
      refuse(device, kKey, element, kExpected);
    }
    tiles.push_back({.rows = side(0), .columns = side(1)});
  }
  return tiles;
}

double read_share(const TomlSection& section, std::string_view key) {
  constexpr double kLeast = std::numeric_limits<double>::min();
  return read_number(
      section,
      key,
      {.least = kLeast, .most = 1.0, .expected = "a share: a number above 0, at most 1"});
}

// The share of a peak that is known.
double read_share_of(const TomlSection& matmul, std::string_view dtype, double peak) {
  if (!has(matmul, dtype)) {
    return 0.0;
  }
  if (peak == 0.0) {
    refuse(matmul,
           dtype,
           require(matmul, dtype, ""),
           format("none, since device.peak.{} is not known", dtype));
  }
  return read_share(matmul, dtype);
}

// The shares, with which each dtype that has a peak has one: its own, or that of bf16.
DeviceCurve::Matmul read_matmul(const TomlSection& curve, const PeakFlops& peaks) {
  constexpr std::string_view kExpected = "a table such as { bf16 = 0.8 }";
  const TomlSection matmul = require_table(curve, "matmul", kExpected);
  refuse_unknown_keys(matmul, std::to_array<std::string>({"f32", "bf16", "f8"}));
  const DeviceCurve::Matmul shares = {.f32 = read_share_of(matmul, "f32", peaks.f32),
                                      .bf16 = read_share_of(matmul, "bf16", peaks.bf16),
                                      .f8 = read_share_of(matmul, "f8", peaks.f8)};
  const auto refuse_shares = [&](std::string_view expected) {
    refuse(curve, "matmul", require(curve, "matmul", ""), expected);
  };
  if (peaks == PeakFlops{}) {
    refuse_shares("no [device.curve], since no peak of device.peak is known");
  }
  if (shares.bf16 == 0.0 && peaks.bf16 > 0.0) {
    refuse_shares("a share of bf16 in it, since device.peak.bf16 is known");
  }
  if (shares.bf16 == 0.0 && shares.f32 == 0.0 && peaks.f32 > 0.0) {
    refuse_shares("a share of f32 in it, since device.peak.f32 is known");
  }
  if (shares.bf16 == 0.0 && shares.f8 == 0.0 && peaks.f8 > 0.0) {
    refuse_shares("a share of f8 in it, since device.peak.f8 is known");
  }
  return shares;
}

DeviceCurve::Attention read_attention(const TomlSection& curve) {
  const TomlSection attention = require_table(
      curve, "attention", "a table such as { forward = 0.7, backward = 0.84, half = 750 }");
  refuse_unknown_keys(attention, std::to_array<std::string>({"forward", "backward", "half"}));
  return {.forward = read_share(attention, "forward"),
          .backward = read_number(attention,
                                  "backward",
                                  {.least = std::numeric_limits<double>::min(),
                                   .most = 10.0,
                                   .expected = "a number above 0, at most 10"}),
          .half = read_number(
              attention,
              "half",
              {.least = 0.0, .most = kMaxElements, .expected = "a number from 0 to 1000000"})};
}

double read_vector(const TomlSection& curve, const PeakFlops& peaks) {
  if (peaks.f32 == 0.0) {
    refuse(
        curve, "vector", require(curve, "vector", ""), "none, since device.peak.f32 is not known");
  }
  return read_share(curve, "vector");
}

DeviceCurve read_curve(const TomlSection& device, const DeviceSpec& spec) {
  const TomlSection curve = require_table(device, "curve", "a section [device.curve]");
  refuse_unknown_keys(curve,
                      std::to_array<std::string>({"matmul",
                                                  "k_half",
                                                  "tile_half",
                                                  "stream",
                                                  "kernel",
                                                  "attention",
                                                  "vector",
                                                  "comm_share"}));
  if (spec.memory_bandwidth == 0.0) {
    refuse(device,
           "curve",
           require(device, "curve", ""),
           "none, since device.memory_bandwidth is not known");
  }
  const NumberRange elements = {
      .least = 0.0, .most = kMaxElements, .expected = "a number from 0 to 1000000"};
  return {.matmul = read_matmul(curve, spec.peak_flops),
          .k_half = read_number(curve, "k_half", elements),
          .tile_half = read_number(curve, "tile_half", elements),
          .stream = read_share(curve, "stream"),
          .kernel = read_quantity(curve, "kernel", kTimeUnit, "3 us"),
          .attention = read_attention(curve),
          .vector = has(curve, "vector") ? read_vector(curve, spec.peak_flops) : 0.0,
          .comm_share = read_number(
              curve,
              "comm_share",
              {.least = 0.0, .most = 0.99, .expected = "a share: a number from 0 to 0.99"})};
}

std::string shares_text(const DeviceCurve::Matmul& shares) {
  std::string text;
  for (const auto& [name, share] :
       {std::pair{"f32", shares.f32}, std::pair{"bf16", shares.bf16}, std::pair{"f8", shares.f8}}) {
    if (share > 0.0) {
      text += format("{}{} = {}", text.empty() ? "" : ", ", name, toml_number(share));
    }
  }
  return text;
}

std::string curve_text(const DeviceCurve& curve) {
  return format(
      "\n[device.curve]\n"
      "matmul = {{ {} }}\n"
      "k_half = {}\n"
      "tile_half = {}\n"
      "stream = {}\n"
      "kernel = {}\n"
      "attention = {{ forward = {}, backward = {}, half = {} }}\n"
      "{}"
      "comm_share = {}\n",
      shares_text(curve.matmul),
      toml_number(curve.k_half),
      toml_number(curve.tile_half),
      toml_number(curve.stream),
      toml_quantity(curve.kernel, kTimeUnit),
      toml_number(curve.attention.forward),
      toml_number(curve.attention.backward),
      toml_number(curve.attention.half),
      curve.vector > 0.0 ? format("vector = {}\n", toml_number(curve.vector)) : "",
      toml_number(curve.comm_share));
}

}  // namespace

DeviceSpec read_device(const TomlSection& device) {
  refuse_unknown_keys(
      device,
      std::to_array<std::string>(
          {"name", "memory", "memory_bandwidth", "peak", "units", "tiles", "host_link", "curve"}));
  DeviceSpec spec = {
      .name = read_text(device, "name"),
      .memory_bytes = read_bytes(device, "memory"),
      .memory_bandwidth = read_quantity(device, "memory_bandwidth", kBandwidthUnit, "1.6 TB/s"),
      .peak_flops = read_peaks(device)};
  if (has(device, "units")) {
    spec.units = read_integer(device, "units", 1, kMaxUnits);
  }
  if (has(device, "tiles")) {
    spec.tiles = read_tiles(device);
    if (spec.units == 0) {
      refuse(device, "tiles", require(device, "tiles", ""), "device.units beside them");
    }
  } else if (spec.units > 0) {
    refuse(device, "units", require(device, "units", ""), "device.tiles beside them");
  }
  if (has(device, "host_link")) {
    spec.host_link = read_quantity(device, "host_link", kBandwidthUnit, "55 GB/s");
  }
  if (has(device, "curve")) {
    spec.curve = read_curve(device, spec);
  }
  return spec;
}

std::string to_toml(const DeviceSpec& device) {
  const PeakFlops& peaks = device.peak_flops;
  std::string text =
      format("name = {}\nmemory = {}\nmemory_bandwidth = {}\npeak = {{ f32 = {}, bf16 = {}{} }}\n",
             toml_string(device.name),
             toml_quantity(static_cast<double>(device.memory_bytes), kMemoryUnit),
             toml_quantity(device.memory_bandwidth, kBandwidthUnit),
             toml_quantity(peaks.f32, kFlopsUnit),
             toml_quantity(peaks.bf16, kFlopsUnit),
             peaks.f8 > 0.0 ? format(", f8 = {}", toml_quantity(peaks.f8, kFlopsUnit)) : "");
  text += device.units > 0 ? format("units = {}\n", device.units) : "";
  std::string tiles;
  for (const DeviceSpec::Tile& tile : device.tiles) {
    tiles += format("{}[{}, {}]", tiles.empty() ? "" : ", ", tile.rows, tile.columns);
  }
  text += tiles.empty() ? "" : format("tiles = [{}]\n", tiles);
  text += device.host_link > 0.0
              ? format("host_link = {}\n", toml_quantity(device.host_link, kBandwidthUnit))
              : "";
  return device.curve ? text + curve_text(*device.curve) : text;
}

}  // namespace tessera
