#include "tessera/train/explain.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/ops/op.h"
#include "tessera/program/step_traffic.h"

namespace tessera {
namespace {

std::string mesh_text(const Mesh& mesh) {
  std::string text = format("\nmesh of {} ranks, innermost axis first\n", mesh.num_ranks());
  text += format("  {:<18} {:>6} {:>8}  {}\n", "axis", "ranks", "stride", "level");
  for (const MeshAxis& axis : mesh.axes) {
    text += format("  {:<18} {:>6} {:>8}  {}\n", axis.name, axis.size, axis.stride, axis.level);
  }
  return text;
}

std::string wire_text(const Wire& wire) {
  return wire.formats.empty() ? "as it is" : to_string(wire.formats);
}

// How many elements share a scale, where any format has scales.
std::string scales_text(const StateWires& wires) {
  bool has_scales = false;
  for (const Wire* wire : {&wires.param, &wires.secondary, &wires.grad, &wires.update}) {
    has_scales = has_scales || std::ranges::any_of(wire->formats, is_quantized);
  }
  return has_scales ? format("; {} elements share a scale", wires.param.block) : "";
}

std::string secondary_text(const RunLayout& layout) {
  if (layout.placement.secondary == layout.placement.param) {
    return "none";
  }
  return format("{}{}",
                layout.placement.secondary,
                layout.secondary_use == SecondaryUse::kBackward ? " for backward" : "");
}

std::string placement_text(const RunLayout& layout) {
  const Placement& placement = layout.placement;
  std::string text = format(
      "\nstate over {} data ranks: parameters {}, secondary {}, gradients {}, optimizer {}\n",
      data_degrees(layout.mesh).back(),
      placement.param,
      secondary_text(layout),
      placement.grad,
      placement.optimizer);
  const StateWires& wires = layout.wires;
  text += format("on the wire: parameters {}, gradients {}, updates {}{}\n",
                 wire_text(wires.param),
                 wire_text(wires.grad),
                 wire_text(wires.update),
                 scales_text(wires));
  for (const std::string& note : layout.notes) {
    text += format("note: {}\n", note);
  }
  return text;
}

std::string parameters_text(const RunLayout& layout, const std::vector<ParameterInit>& parameters) {
  std::string text =
      format("\nparameters: whole, on the axes that cut it, and at rest on a rank\n");
  const DimAxes dims = layout.dims();
  for (const ParameterInit& parameter : parameters) {
    const TensorType local = local_type(parameter.type, dims);
    const std::string axes = to_string(axes_of(parameter.type, dims));
    const std::int64_t slice =
        padded_elements(local.num_elements(), data_degrees(layout.mesh).back()) /
        layout.placement.param;
    text += format("  {:<40} {:<44} {:<24} {}\n",
                   parameter.name,
                   to_string(parameter.type),
                   axes.empty() ? "-" : axes,
                   layout.placement.param > 1 ? format("a slice of {}", slice) : to_string(local));
  }
  return text;
}

// Collectives of one op over the same axes.
struct CollectiveRow {
  std::int64_t count = 0;
  Traffic sent;
};

// The bytes, and by axis where they go along several.
std::string sent_text(const Traffic& sent) {
  std::int64_t bytes = 0;
  std::string axes;
  for (const auto& [axis, classes] : sent) {
    const std::int64_t along = std::accumulate(classes.begin(), classes.end(), std::int64_t{0});
    bytes += along;
    axes += format("{}{} {}", axes.empty() ? "" : ", ", axis, format_bytes(along));
  }
  return format("{:>12}{}", format_bytes(bytes), sent.size() > 1 ? " (" + axes + ")" : "");
}

std::string collectives_text(const Program& program) {
  std::map<std::string, CollectiveRow> rows;
  for (std::size_t i = 0; i < program.segments.size(); ++i) {
    for (const Instruction& instruction : program.segments[i].instructions) {
      TensorTypes operands;
      for (const TensorRef& operand : instruction.operands) {
        operands.push_back(operand.type);
      }
      for (const CollectiveUse& use : collectives(*instruction.op, operands)) {
        CollectiveRow& row = rows[format("{:<9} {:<20} {:<14} {}",
                                         name(program.segments[i].action),
                                         info(*instruction.op).name,
                                         name(use.kind),
                                         to_string(use.axes))];
        const std::int64_t count = use.count * program.num_runs(SegmentId::of(i), instruction);
        row.count += count;
        add(row.sent, use.sent, count);
      }
    }
  }
  std::string text = format("\ncollectives of a step, and what a rank sends in them\n");
  for (const auto& [what, row] : rows) {
    text += format("  {:>6} x {:<72} {}\n", row.count, what, sent_text(row.sent));
  }
  return text;
}

std::string traffic_text(const Program& program, const Mesh& mesh) {
  std::string text = format("\nbytes that a rank sends in a step, by level and class\n");
  for (const auto& [level, bytes] : by_level(step_traffic(program), mesh)) {
    text += format("  {:<12}", level);
    for (const TrafficClass traffic_class : kTrafficClasses) {
      text += format("  {} {:>16}",
                     name(traffic_class),
                     format_grouped(bytes.at(static_cast<std::size_t>(traffic_class))));
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::string explain_ranks(const RunLayout& layout,
                          const std::vector<ParameterInit>& parameters,
                          const Program& program) {
  return mesh_text(layout.mesh) + placement_text(layout) + parameters_text(layout, parameters) +
         collectives_text(program) + traffic_text(program, layout.mesh);
}

}  // namespace tessera
