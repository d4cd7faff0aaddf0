#include "tessera/resolve/resolve_layout.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/mesh/machine_cluster.h"

namespace tessera {
namespace {

Cluster run_cluster(const RunConfig& config, std::int64_t ranks) {
  const std::string& file = config.cluster.file;
  if (file.empty()) {
    return local_cluster(ranks);
  }
  return with_context([&] { return placed(config, "cluster.file"); },
                      [&] { return file == "local" ? machine_cluster() : load_cluster(file); });
}

// What a preset says with what the config says in its place.
class StatePlan {
 public:
  StatePlan(const RunConfig& config, const Mesh& mesh) : config_(config), mesh_(mesh) {}

  PlacementPreset read() {
    const StateSection& state = config_.state;
    PlacementPreset plan = with_context([&] { return place_of_levels("state.preset"); },
                                        [&] { return preset(state.preset, mesh_); });
    Placement& placement = plan.placement;
    // A secondary copy that the preset does not have follows the parameters.
    if (state.param && !state.secondary && placement.secondary == placement.param) {
      placement.secondary = degree("state.param", *state.param);
    }
    replace("state.param", state.param, placement.param);
    replace("state.secondary", state.secondary, placement.secondary);
    replace("state.grad", state.grad, placement.grad);
    replace("state.optimizer", state.optimizer, placement.optimizer);
    with_context([&] { return place_of_degrees(); }, [&] { validate(placement, mesh_); });
    replace_wire("state.wire_param", state.wire_param, plan.wires.param);
    replace_wire("state.wire_param", state.wire_param, plan.wires.secondary);
    replace_wire("state.wire_grad", state.wire_grad, plan.wires.grad);
    replace_wire("state.wire_update", state.wire_update, plan.wires.update);
    for (const std::string& note : notes_) {
      if (std::ranges::find(plan.notes, note) == plan.notes.end()) {
        plan.notes.push_back(note);
      }
    }
    return plan;
  }

 private:
  // Where a key that names levels was set, and why there may be few.
  std::string place_of_levels(std::string_view key) const {
    return placed(config_, key) + (config_.cluster.file.empty()
                                       ? "; cluster.file, which says the levels, is not set"
                                       : "");
  }

  // Where the degrees were set.
  std::string place_of_degrees() const {
    const StateSection& state = config_.state;
    std::string places = place_of_levels("state.preset");
    const auto add = [&](std::string_view key, const std::optional<std::string>& degree) {
      places += degree ? ", " + placed(config_, key) : "";
    };
    add("state.param", state.param);
    add("state.secondary", state.secondary);
    add("state.grad", state.grad);
    add("state.optimizer", state.optimizer);
    return places;
  }

  void replace(std::string_view key,
               const std::optional<std::string>& text,
               std::int64_t& degree_of_state) {
    if (text) {
      degree_of_state = degree(key, *text);
    }
  }

  void replace_wire(std::string_view key,
                    const std::optional<std::string>& text,
                    Wire& wire) const {
    wire.block = config_.state.wire_block;
    with_context([&] { return placed(config_, "state.wire_block"); },
                 [&] { require_wire_block(wire.block); });
    if (text) {
      with_context([&] { return placed(config_, key) + ", which may also be \"full\""; },
                   [&] {
                     wire.formats = *text == "full" ? WireFormats() : parse_wire_formats(*text);
                     formats_of_levels(wire.formats, data_levels(mesh_).size());
                   });
    }
  }

  // The degree that a number or the name of a level stands for.
  std::int64_t degree(std::string_view key, const std::string& text) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) {
      return number;
    }
    const LevelDegree found = with_context([&] { return place_of_levels(key); },
                                           [&] { return level_degree(text, mesh_); });
    if (!found.note.empty()) {
      notes_.push_back(found.note);
    }
    return found.degree;
  }

  const RunConfig& config_;
  const Mesh& mesh_;
  std::vector<std::string> notes_;  // of levels that keys name
};

// Rings follow levels: there is an inner one on each level of context ranks but the outermost.
void require_inner_ring(const RunConfig& config, const Mesh& mesh) {
  const std::string& inner = config.context.inner;
  std::vector<std::string> levels;
  for (const MeshAxis& axis : mesh.axes) {
    if (axis.group == AxisGroup::kContext && axis.size > 1) {
      levels.push_back(axis.level);
    }
  }
  if (inner.empty() || levels.empty()) {
    return;
  }
  const std::string outermost = levels.back();
  levels.pop_back();
  std::string expected;
  for (const std::string& level : levels) {
    expected += format("{}\"{}\"", expected.empty() ? "" : " or ", level);
  }
  TESSERA_REQUIRE(std::ranges::find(levels, inner) != levels.end(),
                  ErrorCode::kInvalidConfig,
                  "{}: found \"{}\", expected {}: the {} context ranks lie {} level \"{}\"",
                  placed(config, "context.inner"),
                  inner,
                  expected.empty() ? "none" : expected,
                  config.parallel.context,
                  expected.empty() ? "within one" : "out to",
                  outermost);
}

}  // namespace

ResolvedLayout resolve_layout(const RunConfig& config) {
  ResolvedLayout resolved;
  RunLayout& layout = resolved.layout;
  const ParallelSection& parallel = config.parallel;
  const std::int64_t data = parallel.data.value_or(1);
  const Cluster cluster = run_cluster(config, data * parallel.ranks_of_data());
  const MeshDegrees degrees = {.data = data,
                               .tensor = parallel.tensor,
                               .context = parallel.context,
                               .pipeline = parallel.pipeline};
  layout.mesh = with_context([&] { return placed(config, "parallel.ranks"); },
                             [&] { return make_mesh(cluster, degrees); });
  layout.sequence_parallel = parallel.sequence_parallel;
  layout.context = config.context.layout();
  require_inner_ring(config, layout.mesh);
  if (!config.cluster.file.empty() && config.cluster.file != "local") {
    resolved.device = cluster.device;
    resolved.disk_bandwidth = cluster.disk_bandwidth;
    resolved.levels = cluster.levels;
  }
  const PlacementPreset plan = StatePlan(config, layout.mesh).read();
  layout.placement = plan.placement;
  layout.secondary_use = config.state.secondary_use;
  TESSERA_REQUIRE(
      layout.secondary_use == SecondaryUse::kAll || plan.placement.secondary < plan.placement.param,
      ErrorCode::kInvalidConfig,
      "{}: found \"backward\", and there is no secondary copy to use: set "
      "state.secondary below param = {}, or a preset that has one (zeropp or "
      "shard-grad-op)",
      placed(config, "state.secondary_use"),
      plan.placement.param);
  layout.wires = plan.wires;
  resolved.notes = plan.notes;
  return resolved;
}

double bandwidth_of(const std::vector<Level>& levels, std::string_view name) {
  std::int64_t inside = 1;  // devices in a group of the level below
  for (const Level& level : levels) {
    if (level.name == name) {
      return level.shared ? level.bandwidth / static_cast<double>(inside) : level.bandwidth;
    }
    inside *= level.size;
  }
  return 0;
}

}  // namespace tessera
