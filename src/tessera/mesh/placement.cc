#include "tessera/mesh/placement.h"

#include <algorithm>
#include <array>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

// Slices are whole blocks: of quantization, and of the exact gradient norm.
constexpr std::int64_t kBlock = 256;

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += format("{}{}", text.empty() ? "" : ", ", word);
  }
  return text;
}

bool holds_gradients(const MeshAxis& axis) {
  return axis.group == AxisGroup::kData || axis.group == AxisGroup::kContext;
}

std::int64_t num_data_ranks(const Mesh& mesh) {
  return data_degrees(mesh).back();
}

// "1, 2 (pair), 8 (node)"
std::string describe_degrees(const Mesh& mesh) {
  std::string text = "1";
  for (const DataLevel& level : data_levels(mesh)) {
    text += format(", {} ({})", level.degree, level.name);
  }
  return text;
}

// V * (1/D_(l-1) - 1/D_l) for each level with lo < D_l <= hi. Exact: the volumes divide by N.
std::vector<std::int64_t> hop_bytes(const std::vector<DataLevel>& levels,
                                    const std::vector<std::int64_t>& volumes,
                                    std::int64_t lo,
                                    std::int64_t hi) {
  std::vector<std::int64_t> bytes;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const bool crossed = lo < levels[i].degree && levels[i].degree <= hi;
    bytes.push_back(crossed ? volumes[i] / levels[i].degree * (levels[i].radix - 1) : 0);
  }
  return bytes;
}

// Of a padded tensor of this dtype, on each level.
std::vector<std::int64_t> volumes_of(const Wire& wire,
                                     DType dtype,
                                     std::int64_t padded,
                                     std::size_t levels) {
  std::vector<std::int64_t> volumes(levels, padded * static_cast<std::int64_t>(size_bytes(dtype)));
  const WireFormats formats = formats_of_levels(wire.formats, levels);
  for (std::size_t i = 0; i < formats.size(); ++i) {
    volumes[i] = wire_bytes({.format = formats[i], .block = wire.block}, padded);
  }
  return volumes;
}

struct NamedDegree {
  std::string_view name;
  std::int64_t degree;
};

void require_divides(const NamedDegree& inner, const NamedDegree& outer) {
  TESSERA_REQUIRE(outer.degree % inner.degree == 0,
                  ErrorCode::kInvalidConfig,
                  "state: {} degree {} does not divide {} degree {}; lower {} or raise {}",
                  inner.name,
                  inner.degree,
                  outer.name,
                  outer.degree,
                  inner.name,
                  outer.name);
}

}  // namespace

std::vector<DataLevel> data_levels(const Mesh& mesh) {
  std::vector<DataLevel> levels;
  std::int64_t degree = 1;
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    const MeshAxis& axis = mesh.axes[i];
    if (!holds_gradients(axis)) {
      continue;
    }
    if (levels.empty() || levels.back().name != axis.level) {
      levels.push_back({.name = axis.level, .radix = 1, .degree = degree, .axes = {}});
    }
    degree *= axis.size;
    levels.back().radix *= axis.size;
    levels.back().degree = degree;
    levels.back().axes.push_back(i);
  }
  return levels;
}

std::vector<std::int64_t> data_degrees(const Mesh& mesh) {
  std::vector<std::int64_t> degrees = {1};
  for (const DataLevel& level : data_levels(mesh)) {
    degrees.push_back(level.degree);
  }
  return degrees;
}

LevelDegree level_degree(std::string_view level, const Mesh& mesh) {
  const auto named = std::ranges::find(mesh.levels, level);
  TESSERA_REQUIRE(
      named != mesh.levels.end(),
      ErrorCode::kInvalidConfig,
      "no level \"{}\"{}; the levels of the cluster are: {}; a degree can also be given "
      "as a number",
      level,
      did_you_mean(level, mesh.levels),
      join(mesh.levels));
  LevelDegree result;
  std::string inner;
  for (const DataLevel& data_level : data_levels(mesh)) {
    if (std::ranges::find(mesh.levels, data_level.name) <= named) {
      result.degree = data_level.degree;
      inner = data_level.name;
    }
  }
  if (inner.empty()) {
    result.note = format("level \"{}\" has degree 1: no data ranks lie inside it", level);
  } else if (inner != level) {
    result.note = format("level \"{}\" has degree {}, as \"{}\": no data ranks lie between",
                         level,
                         result.degree,
                         inner);
  }
  return result;
}

PlacementPreset preset(std::string_view name, const Mesh& mesh) {
  const std::int64_t n = num_data_ranks(mesh);
  std::vector<std::string> notes;
  const auto level = [&](std::string_view wanted) {
    const LevelDegree found = with_context([&] { return format("state preset \"{}\"", name); },
                                           [&] { return level_degree(wanted, mesh); });
    if (!found.note.empty()) {
      notes.push_back(found.note);
    }
    return found.degree;
  };
  const std::size_t at = name.find('@');
  const std::string_view base = name.substr(0, at);
  std::optional<Placement> placement;
  if (base == "hsdp" || base == "mics") {
    TESSERA_REQUIRE(at != std::string_view::npos,
                    ErrorCode::kInvalidConfig,
                    "state preset \"{}\" needs a level: {}@LEVEL, where LEVEL is one of: {}",
                    name,
                    name,
                    join(mesh.levels));
    const std::int64_t s = level(name.substr(at + 1));
    placement = {s, s, s, s};
  } else if (name == "ddp") {
    placement = {1, 1, 1, 1};
  } else if (name == "zero1") {
    placement = {1, 1, 1, n};
  } else if (name == "zero2") {
    placement = {1, 1, n, n};
  } else if (name == "zero3" || name == "fsdp") {
    placement = {n, n, n, n};
  } else if (name == "shard-grad-op") {
    placement = {n, 1, n, n};
  } else if (name == "zeropp") {
    placement = {n, level("node"), n, n};
  } else if (name == "topo" || name == "topo-int8") {
    const std::int64_t pair = level("pair");
    placement = {pair, pair, level("node"), n};
  }
  const std::vector<std::string> known = {"ddp",
                                          "zero1",
                                          "zero2",
                                          "zero3",
                                          "fsdp",
                                          "shard-grad-op",
                                          "zeropp",
                                          "topo",
                                          "topo-int8",
                                          "hsdp@LEVEL",
                                          "mics@LEVEL"};
  TESSERA_REQUIRE(placement.has_value(),
                  ErrorCode::kInvalidConfig,
                  "unknown state preset \"{}\"{}; the presets are: {}, where LEVEL is one of: {}",
                  name,
                  did_you_mean(name, known),
                  join(known),
                  join(mesh.levels));
  PlacementPreset result = {.placement = *placement, .wires = {}, .notes = std::move(notes)};
  if (name == "zeropp" || name == "topo" || name == "topo-int8") {
    result.wires.param.formats = {WireFormat::kInt8};
    result.wires.secondary.formats = {WireFormat::kInt8};
    result.wires.grad.formats = {WireFormat::kInt4};
  }
  if (name == "topo-int8") {
    result.wires.update.formats = {WireFormat::kInt8};
  }
  return result;
}

void validate(const Placement& placement, const Mesh& mesh) {
  const NamedDegree param = {"param", placement.param};
  const NamedDegree secondary = {"secondary", placement.secondary};
  const NamedDegree grad = {"grad", placement.grad};
  const NamedDegree optimizer = {"optimizer", placement.optimizer};
  const std::vector<std::int64_t> degrees = data_degrees(mesh);
  for (const NamedDegree& state : {param, secondary, grad, optimizer}) {
    TESSERA_REQUIRE(std::ranges::find(degrees, state.degree) != degrees.end(),
                    ErrorCode::kInvalidConfig,
                    "state: {} degree {}, expected one of {}",
                    state.name,
                    state.degree,
                    describe_degrees(mesh));
  }
  require_divides(param, grad);
  require_divides(grad, optimizer);
  require_divides(secondary, param);
}

AxisSizes data_axes(const Mesh& mesh) {
  AxisSizes axes;
  for (const DataLevel& level : data_levels(mesh)) {
    for (const std::size_t axis : level.axes) {
      axes.push_back({.name = mesh.axes[axis].name, .size = mesh.axes[axis].size});
    }
  }
  return axes;
}

std::int64_t padded_elements(std::int64_t elements, std::int64_t ranks) {
  TESSERA_REQUIRE(elements >= 0 && ranks >= 1,
                  ErrorCode::kInvalidArgument,
                  "{} elements over {} ranks, expected at least 0 and at least 1",
                  elements,
                  ranks);
  const std::int64_t unit = ranks * kBlock;
  return (elements + unit - 1) / unit * unit;
}

Wire wire_of_axes(const Wire& wire, const Mesh& mesh) {
  const std::vector<DataLevel> levels = data_levels(mesh);
  const WireFormats formats = formats_of_levels(wire.formats, levels.size());
  Wire result = {.formats = {}, .block = wire.block};
  for (std::size_t i = 0; i < formats.size(); ++i) {
    result.formats.insert(result.formats.end(), levels[i].axes.size(), formats[i]);
  }
  return result;
}

WireBytes wire_bytes(const StateWires& wires,
                     std::int64_t elements,
                     DType compute,
                     const Mesh& mesh) {
  const std::size_t levels = data_levels(mesh).size();
  const std::int64_t padded = padded_elements(elements, num_data_ranks(mesh));
  return {.param = volumes_of(wires.param, compute, padded, levels),
          .secondary = volumes_of(wires.secondary, compute, padded, levels),
          .grad = volumes_of(wires.grad, DType::kF32, padded, levels),
          .update = volumes_of(wires.update, compute, padded, levels)};
}

StateTraffic state_traffic(const Placement& placement, const WireBytes& wire, const Mesh& mesh) {
  validate(placement, mesh);
  const std::vector<DataLevel> levels = data_levels(mesh);
  const std::int64_t n = num_data_ranks(mesh);
  for (const std::vector<std::int64_t>* volumes :
       {&wire.param, &wire.secondary, &wire.grad, &wire.update}) {
    TESSERA_REQUIRE(volumes->size() == levels.size(),
                    ErrorCode::kInvalidArgument,
                    "bytes of a padded tensor on {} levels, expected {}",
                    volumes->size(),
                    levels.size());
    for (const std::int64_t bytes : *volumes) {
      TESSERA_REQUIRE(bytes >= 0 && bytes % n == 0,
                      ErrorCode::kInvalidArgument,
                      "{} bytes of a padded tensor on the wire do not divide by {} ranks",
                      bytes,
                      n);
    }
  }
  const auto& [param, secondary, grad, optimizer] = placement;
  const bool has_secondary = secondary < param;
  StateTraffic traffic = {
      .param_gather = hop_bytes(levels, wire.param, 1, param),
      .secondary_write = hop_bytes(levels, wire.param, has_secondary ? secondary : param, param),
      .secondary_gather = hop_bytes(levels, wire.secondary, 1, has_secondary ? secondary : 1),
      .grad_reduce = hop_bytes(levels, wire.grad, 1, grad),
      .step_reduce = hop_bytes(levels, wire.grad, grad, optimizer),
      .step_gather = hop_bytes(levels, wire.update, param, optimizer)};
  const std::vector<std::int64_t> beyond = hop_bytes(levels, wire.grad, optimizer, n);
  for (std::size_t i = 0; i < beyond.size(); ++i) {
    traffic.step_reduce[i] += 2 * beyond[i];
  }
  return traffic;
}

StateBytes state_bytes(const Placement& placement, const StateTensor& tensor) {
  for (const DType dtype : {tensor.compute, tensor.moments}) {
    TESSERA_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16,
                    ErrorCode::kInvalidArgument,
                    "training state in {}, expected f32 or bf16",
                    name(dtype));
  }
  const auto held = [&](std::int64_t degree) {
    TESSERA_REQUIRE(degree >= 1 && tensor.ranks % degree == 0,
                    ErrorCode::kInvalidArgument,
                    "state of degree {} on {} ranks, which it does not divide",
                    degree,
                    tensor.ranks);
    return degree == 1 ? tensor.elements : padded_elements(tensor.elements, tensor.ranks) / degree;
  };
  const auto& [param, secondary, grad, optimizer] = placement;
  constexpr std::int64_t kF32Bytes = 4;
  const std::int64_t moments = 2 * static_cast<std::int64_t>(size_bytes(tensor.moments));
  const auto compute_bytes = static_cast<std::int64_t>(size_bytes(tensor.compute));
  const bool has_master = tensor.compute != DType::kF32 || optimizer != param;
  return {.param = held(param) * compute_bytes,
          .secondary = secondary < param ? held(secondary) * compute_bytes : 0,
          .grad = held(grad) * kF32Bytes,
          .optimizer = held(optimizer) * (moments + (has_master ? kF32Bytes : 0))};
}

std::string_view to_string(SecondaryUse use) {
  switch (use) {
    case SecondaryUse::kAll:
      return "all";
    case SecondaryUse::kBackward:
      return "backward";
  }
  return "?";
}

}  // namespace tessera
