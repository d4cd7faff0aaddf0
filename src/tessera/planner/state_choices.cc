#include "tessera/planner/state_choices.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ir/wire_format.h"

namespace tessera {
namespace {

std::vector<Placement> placements(const Mesh& mesh) {
  const std::vector<std::int64_t> degrees = data_degrees(mesh);
  std::vector<Placement> found;
  for (std::size_t o = 0; o < degrees.size(); ++o) {
    for (std::size_t g = 0; g <= o; ++g) {
      for (std::size_t p = 0; p <= g; ++p) {
        for (std::size_t s = 0; s <= p; ++s) {
          found.push_back({.param = degrees[p],
                           .secondary = degrees[s],
                           .grad = degrees[g],
                           .optimizer = degrees[o]});
        }
      }
    }
  }
  return found;
}

// Formats of the run's own, one a level, innermost first. Errors: kInvalidArgument where the run
// names another number of levels.
WireFormats own_formats(const std::optional<std::string>& text,
                        WireFormat plain,
                        std::size_t num_levels) {
  const WireFormats formats = text && *text != "full"
                                  ? formats_of_levels(parse_wire_formats(*text), num_levels)
                                  : WireFormats();
  return formats.empty() ? WireFormats(num_levels, plain) : formats;
}

// `own`, of which the first `count` may be replaced by allowed ones of fewer bits: in every way in
// which no replaced one has a wider one outside it.
std::vector<WireFormats> narrower(const WireFormats& own,
                                  const WireFormats& allowed,
                                  std::size_t count) {
  std::vector<WireFormats> found = {own};
  for (std::size_t level = 0; level < count; ++level) {
    std::vector<WireFormats> next;
    for (const WireFormats& formats : found) {
      const bool is_bound = !std::equal(
          own.begin(), own.begin() + static_cast<std::ptrdiff_t>(level), formats.begin());
      if (!is_bound || own[level] >= formats[level - 1]) {
        next.push_back(formats);
      }
      for (const WireFormat format : allowed) {
        if (format > own[level] && (!is_bound || format >= formats[level - 1])) {
          next.push_back(formats);
          next.back()[level] = format;
        }
      }
    }
    found = std::move(next);
  }
  return found;
}

// As state.wire_param and state.wire_grad, the run's own first, as "".
std::vector<std::string> wire_texts(const WireFormats& own,
                                    const WireFormats& allowed,
                                    std::size_t count) {
  const std::vector<WireFormats> found = narrower(own, allowed, count);
  std::vector<std::string> texts;
  for (const WireFormats& each : found) {
    const bool is_one = std::ranges::all_of(
        each.begin(), each.begin() + static_cast<std::ptrdiff_t>(count), [&](WireFormat format) {
          return format == each.front();
        });
    texts.push_back(each == own ? "" : is_one ? std::string(name(each.front())) : to_string(each));
  }
  return texts;
}

WireFormats allowed_formats(bool int8, bool int4) {
  WireFormats formats;
  if (int8) {
    formats.push_back(WireFormat::kInt8);
  }
  if (int4) {
    formats.push_back(WireFormat::kInt4);
  }
  return formats;
}

// Of the run on the levels of a mesh.
struct OwnWires {
  WireFormats param;
  WireFormats grad;
};

// None where the run's formats are of another number of levels: no plan of the mesh is one then.
std::optional<OwnWires> own_wires(const RunConfig& config, std::size_t num_levels) {
  const WireFormat plain = wire_format_of(config.train.dtype).value_or(WireFormat::kF32);
  try {
    return OwnWires{.param = own_formats(config.state.wire_param, plain, num_levels),
                    .grad = own_formats(config.state.wire_grad, WireFormat::kF32, num_levels)};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) {
      throw;
    }
    return std::nullopt;
  }
}

}  // namespace

StateChoice state_choice(const Placement& placement, const Mesh& mesh) {
  const std::vector<DataLevel> levels = data_levels(mesh);
  if (levels.empty()) {
    return {};
  }
  const auto [param, secondary, grad, optimizer] = placement;
  const std::int64_t all = levels.back().degree;
  if (param == 1) {
    if (optimizer == 1) {
      return {.preset = "ddp"};
    }
    if (optimizer == all && (grad == 1 || grad == all)) {
      return {.preset = grad == 1 ? "zero1" : "zero2"};
    }
  }
  if (param > 1 && param == grad && grad == optimizer && secondary == param) {
    if (param == all) {
      return {.preset = "fsdp"};
    }
    const auto level = std::ranges::find(levels, param, &DataLevel::degree);
    return {.preset = format("hsdp@{}", level->name)};
  }
  if (param == all && secondary == 1) {
    return {.preset = "shard-grad-op"};
  }
  return {.preset = "fsdp", .degrees = placement};
}

std::vector<StateChoice> state_choices(const RunConfig& config,
                                       const Mesh& mesh,
                                       const AllowedChoices& allowed) {
  const std::vector<DataLevel> levels = data_levels(mesh);
  if (levels.empty()) {
    return {{}};
  }
  std::vector<StateChoice> plain;
  std::vector<StateChoice> marked;
  const std::optional<OwnWires> own = own_wires(config, levels.size());
  for (const Placement& placement : placements(mesh)) {
    const StateChoice state = state_choice(placement, mesh);
    plain.push_back(state);
    if (!own) {
      continue;
    }
    // Gathers cross the levels over which parameters are cut, gradients all.
    const auto crossed = static_cast<std::size_t>(std::ranges::count_if(
        levels, [&](const DataLevel& level) { return level.degree <= placement.param; }));
    for (const std::string& param :
         wire_texts(own->param, allowed_formats(allowed.int8, false), crossed)) {
      for (const std::string& grad :
           wire_texts(own->grad, allowed_formats(allowed.int8, allowed.int4), levels.size())) {
        if (!param.empty() || !grad.empty()) {
          marked.push_back(state);
          marked.back().wire_param = param;
          marked.back().wire_grad = grad;
        }
      }
    }
  }
  plain.insert(plain.end(), marked.begin(), marked.end());
  return plain;
}

}  // namespace tessera
