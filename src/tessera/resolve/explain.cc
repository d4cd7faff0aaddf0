#include "tessera/resolve/explain.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/mesh/placement.h"
#include "tessera/plan/model_costs.h"
#include "tessera/resolve/explain_pipeline.h"
#include "tessera/resolve/resolve.h"

namespace tessera {
namespace {

// ", dim 4096" where it is known.
std::string size_text(std::string_view what, const std::optional<std::int64_t>& size) {
  return size ? format(", {} {}", what, *size) : "";
}

std::string model_text(const Explanation& facts) {
  const ModelSection& model = facts.config.model;
  const ParameterCounts& counts = facts.counts;
  std::string text = format(
      "model: {}{}; {} parameters{}{}\n",
      model.name,
      model.flavor.empty() ? "" : " " + model.flavor,
      format_grouped(counts.all),
      counts.frozen > 0 ? format(", {} of them frozen", format_grouped(counts.frozen)) : "",
      counts.buffers > 0 ? format(", {} elements of buffers", format_grouped(counts.buffers)) : "");
  if (facts.run.target.is_device()) {
    text += format("  for: {}\n", facts.run.target.device.name);
  }
  text += format("  layers {}{}{}{}{}{}\n",
                 facts.model().num_layers,
                 size_text("dim", model.dim),
                 size_text("heads", model.heads),
                 size_text("kv_heads", model.kv_heads),
                 size_text("ffn", model.ffn),
                 size_text("vocab", model.vocab));
  return text;
}

std::string step_text(const Explanation& facts) {
  const RunConfig& config = facts.config;
  std::string how;
  if (config.float8.recipe != Float8Recipe::kOff) {
    how += format(", products in 8-bit floats ({})", to_string(config.float8.recipe));
  }
  if (config.lora.rank > 0) {
    how += format(", adapters of rank {}", config.lora.rank);
  }
  const RecomputeRules& rules = facts.run.plan.passes.recompute;
  if (std::ranges::any_of(
          rules, [](const RecomputeRule& rule) { return rule.kept != RecomputeKept::kAll; })) {
    how += ", activations computed again";
    how += rules == recompute_all() ? "" : format(" ({})", to_string(config.memory.recompute));
  }
  const std::int64_t data = facts.layout().num_data();
  const std::int64_t context = facts.layout().num_context();
  return format(
      "step: {} of {}, {}; in {}{}\n"
      "  microbatches: {}, each of {}{}{}\n",
      format_plural(config.train.global_batch, "sequence"),
      format_plural(config.data.sequence_length, "token"),
      format_plural(facts.tokens_per_step(), "token"),
      name(config.train.dtype),
      how,
      facts.run.plan.num_microbatches,
      format_plural(config.train.microbatch, "sequence"),
      data > 1 ? format(" on each of {} data ranks", data) : "",
      context > 1 ? format(", each shared by {} context ranks ({}, balance {})",
                           context,
                           to_string(facts.layout().context.kind),
                           to_string(facts.layout().context.balance))
                  : "");
}

std::string mesh_text(const Mesh& mesh) {
  std::string text =
      format("\nmesh of {}, innermost axis first\n", format_plural(mesh.num_ranks(), "rank"));
  text += format("  {:<18} {:>6} {:>8}  {}\n", "axis", "ranks", "stride", "level");
  for (const MeshAxis& axis : mesh.axes) {
    text += format("  {:<18} {:>6} {:>8}  {}\n", axis.name, axis.size, axis.stride, axis.level);
  }
  return text;
}

// With whose they are, where no key says them.
std::string wire_text(const Wire& wire,
                      const std::optional<std::string>& key,
                      const std::string& preset) {
  return wire.formats.empty() ? "as it is"
                              : to_string(wire.formats) + (key ? "" : format(" (of {})", preset));
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

std::string placement_text(const Explanation& facts) {
  const RunLayout& layout = facts.layout();
  const Placement& placement = layout.placement;
  std::string text =
      format("state over {} {}ranks: parameters {}, secondary {}, gradients {}, optimizer {}\n",
             data_degrees(layout.mesh).back(),
             layout.num_context() > 1 ? "data and context " : "data ",
             placement.param,
             secondary_text(layout),
             placement.grad,
             placement.optimizer);
  const StateWires& wires = layout.wires;
  const StateSection& state = facts.config.state;
  text += format("on the wire: parameters {}, gradients {}, updates {}{}\n",
                 wire_text(wires.param, state.wire_param, state.preset),
                 wire_text(wires.grad, state.wire_grad, state.preset),
                 wire_text(wires.update, state.wire_update, state.preset),
                 scales_text(wires));
  for (const std::string& note : facts.notes) {
    text += format("note: {}\n", note);
  }
  return text;
}

std::string fit_text(const Explanation& facts) {
  const MemoryFit& fit = facts.fit;
  const std::string needed =
      format_bytes(fit.needed) +
      (facts.work.size() > 1 ? format(" on a rank of pipeline rank {}", facts.memory.pipeline_rank)
                             : "");
  std::string where;
  switch (fit.of) {
    case MemoryFit::Limit::kNone:
      return format(
          "  it needs {}{}; memory.limit_bytes, or the device of a cluster.file or of --target, "
          "would say whether that is there\n",
          needed,
          facts.work.size() > 1 ? "" : " on a rank");
    case MemoryFit::Limit::kConfig:
      where = "memory.limit_bytes allows";
      break;
    case MemoryFit::Limit::kDevice:
      where = facts.run.target.is_device()
                  ? format("the {} has, beside what its libraries take,", facts.device.name)
                  : format("a {} of the cluster has", facts.device.name);
      break;
    case MemoryFit::Limit::kMachine:
      where = "this machine has free for it";
      break;
  }
  return format("  it {}: it needs {}, and {} {}\n",
                fit.needed <= fit.limit ? "fits" : "does not fit",
                needed,
                where,
                format_bytes(fit.limit));
}

// What files cost: a disk endures so many bytes. A step takes no less time than the disk, and than
// products at the device's peak where that is known.
std::string wear_text(const Explanation& facts) {
  const SpaceTraffic& traffic = facts.memory.file.traffic;
  if (traffic.stored == 0) {
    return "";
  }
  constexpr double kDay = 86400.0;
  constexpr double kMuch = 1e12;
  const auto ranks = static_cast<double>(ranks_on_machine(facts.config));
  const double seconds =
      ranks * static_cast<double>(traffic.fetched + traffic.stored) / facts.disk_bandwidth;
  const DeviceSpec::PeakFlops& peak = facts.device.peak_flops;
  double step = seconds;
  if (has_speed(facts.device, facts.run.plan.dtype)) {
    for (const RankWork& work : facts.work) {
      step = std::max(step, work.cost.flop / std::max({peak.f32, peak.bf16, peak.f8}));
    }
  }
  const double a_day = ranks * static_cast<double>(traffic.stored) * kDay / step;
  return format(
      "  a disk of {}B/s needs {:.3g} s for what a step moves{}, and writes up to {:.3g} TB a "
      "day{}\n",
      format_count(facts.disk_bandwidth),
      seconds,
      ranks > 1 ? format(" on {} ranks", ranks) : "",
      a_day / 1e12,
      a_day > kMuch ? ": more than 1 TB a day wears it out" : "");
}

std::string memory_text(const Explanation& facts) {
  const std::int64_t ranks = facts.num_ranks();
  const bool several = facts.work.size() > 1;
  const std::string chosen =
      facts.chosen ? format("  {}\n", to_string(*facts.chosen, facts.run)) : "";
  std::string idle;
  for (const std::string& line : idle_offloads(facts.programs, facts.run.plan)) {
    idle += format("  {}\n", line);
  }
  return format("\nmemory {}at its peak, by category\n{}{}{}{}{}",
                several     ? format("of a rank of pipeline rank {} ", facts.memory.pipeline_rank)
                : ranks > 1 ? format("of each of ranks 0 to {} ", ranks - 1)
                            : "",
                memory_table(facts.memory),
                fit_text(facts),
                idle,
                wear_text(facts),
                chosen);
}

// " on a rank of pipeline rank 1", as far as there are several.
std::string on_a_rank(const Explanation& facts, std::size_t place) {
  return facts.work.size() > 1   ? format(" on a rank of pipeline rank {}", place)
         : facts.num_ranks() > 1 ? " on a rank"
                                 : "";
}

std::string rank_work_text(const Explanation& facts, std::size_t place) {
  const RankWork& work = facts.work[place];
  std::string text = format("\nwork of a step{}: {}FLOP; kernels read {} and write {}\n",
                            on_a_rank(facts, place),
                            format_count(work.cost.flop),
                            format_bytes(static_cast<std::int64_t>(work.cost.bytes_read)),
                            format_bytes(static_cast<std::int64_t>(work.cost.bytes_written)));
  const DeviceSpec::PeakFlops& peaks = facts.device.peak_flops;
  const double peak = facts.config.train.dtype == DType::kBF16 ? peaks.bf16 : peaks.f32;
  if (peak > 0) {
    text += format("  estimated time at the peak of the {}: {:.3g} s\n",
                   facts.device.name,
                   work.cost.flop / peak);
  }
  if (work.attention.own + work.attention_backward.own > 0) {
    text += format(
        "  attention by own kernels, not cuDNN's: forward {} of {}, backward {} "
        "of "
        "{}\n",
        work.attention.own,
        work.attention.all,
        work.attention_backward.own,
        work.attention_backward.all);
  }
  if (work.gathered_heads > 0) {
    text += format("  norms over all heads gather these from the tensor ranks: {} times\n",
                   work.gathered_heads);
  }
  return text;
}

std::string work_text(const Explanation& facts) {
  std::string text;
  for (std::size_t place = 0; place < facts.work.size(); ++place) {
    text += rank_work_text(facts, place);
  }
  text +=
      format("  training FLOP a token ({} + 12 layers heads head_dim seq): {}; a step: {}\n",
             facts.counts.frozen > 0 ? "6N, 4N of what is frozen," : "6N",
             format_count(facts.flop_per_token()),
             format_count(facts.flop_per_token() * static_cast<double>(facts.tokens_per_step())));
  return text;
}

bool is_timed(const std::vector<LevelTraffic>& levels) {
  return std::ranges::any_of(levels,
                             [](const LevelTraffic& level) { return level.seconds().has_value(); });
}

// The level that takes longest, or where no bandwidths are known the outermost.
const LevelTraffic& slowest(const std::vector<LevelTraffic>& levels) {
  const auto seconds = [](const LevelTraffic& level) { return level.seconds().value_or(0); };
  return is_timed(levels) ? *std::ranges::max_element(levels, {}, seconds) : levels.back();
}

// What a rank sends there, the most first.
std::string purposes_text(const LevelTraffic& level) {
  std::vector<TrafficPurpose> purposes(kTrafficPurposes.begin(), kTrafficPurposes.end());
  const auto bytes = [&](TrafficPurpose purpose) {
    return level.by_purpose.at(static_cast<std::size_t>(purpose));
  };
  std::erase_if(purposes, [&](TrafficPurpose purpose) { return bytes(purpose) == 0; });
  std::ranges::stable_sort(purposes, std::greater<>(), bytes);
  std::string text;
  for (const TrafficPurpose purpose : purposes) {
    text +=
        format("{}{} {}", text.empty() ? "" : ", ", name(purpose), format_bytes(bytes(purpose)));
  }
  return text;
}

// Where updates are most of what the slowest level carries, and travel as they are: of the presets
// topo-int8 alone says how they do.
std::string update_text(const Explanation& facts, const LevelTraffic& level) {
  const auto most = std::ranges::max_element(level.by_purpose);
  const std::int64_t updates =
      level.by_purpose.at(static_cast<std::size_t>(TrafficPurpose::kUpdates));
  const Wire& wire = facts.layout().wires.update;
  if (updates == 0 || updates < *most || !wire.formats.empty()) {
    return "";
  }
  constexpr std::int64_t kElements = 1 << 20;
  const WireFormat full = wire_format_of(facts.config.train.dtype).value_or(WireFormat::kF32);
  const std::int64_t now = wire_bytes({.format = full, .block = wire.block}, kElements);
  const std::int64_t then =
      wire_bytes({.format = WireFormat::kInt8, .block = wire.block}, kElements);
  return format(
      "  updates travel in full: state.wire_update = \"int8\" would send {} of them, rounded{}\n",
      format_bytes(static_cast<std::int64_t>(static_cast<double>(updates) *
                                             static_cast<double>(then) / static_cast<double>(now))),
      facts.config.state.preset == "topo" ? ": topo-int8, the published scheme" : "");
}

// Nothing where ranks of this place send nothing.
std::string traffic_text(const Explanation& facts, std::size_t place) {
  const std::vector<LevelTraffic>& levels = facts.work[place].levels;
  if (levels.empty()) {
    return "";
  }
  std::string text =
      format("\nbytes that a rank{} sends in a step, by level and class\n",
             facts.work.size() > 1 ? format(" of pipeline rank {}", place) : std::string());
  std::string seconds;
  for (const LevelTraffic& level : levels) {
    text += format("  {:<12}", level.level);
    for (const TrafficClass traffic_class : kTrafficClasses) {
      text += format("  {} {:>16}",
                     name(traffic_class),
                     format_grouped(level.bytes.at(static_cast<std::size_t>(traffic_class))));
    }
    text += "\n";
    if (const auto time = level.seconds()) {
      seconds += format("{}{} {:.3g} s", seconds.empty() ? "" : ", ", level.level, *time);
    }
  }
  if (is_timed(levels)) {
    text += format("  estimated time at the cluster's bandwidths: {}\n", seconds);
  }
  const LevelTraffic& most = slowest(levels);
  text += format(
      "  on {}{}: {}\n", most.level, is_timed(levels) ? ", the slowest" : "", purposes_text(most));
  return text + update_text(facts, most);
}

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

std::string rank_ops_text(const Explanation& facts, std::size_t place) {
  const RankWork& work = facts.work[place];
  std::string text =
      format("work of a step{}, by op (attention counts visible pairs of causal sequences)\n",
             on_a_rank(facts, place));
  text += format("{:<26} {:>8} {:>14} {:>14} {:>14}\n", "op", "runs", "FLOP", "read", "written");
  for (const CostRow& row : work.ops) {
    text += format("{:<26} {:>8} {:>14} {:>14} {:>14}\n",
                   row.op,
                   row.count,
                   format_count(row.cost.flop),
                   format_bytes(static_cast<std::int64_t>(row.cost.bytes_read)),
                   format_bytes(static_cast<std::int64_t>(row.cost.bytes_written)));
  }
  if (!work.collectives.empty()) {
    text += "\ncollectives of a step, and what a rank sends in them\n";
  }
  for (const CollectiveRow& row : work.collectives) {
    text += format("  {:>6} x {:<9} {:<20} {:<14} {:<26} {:<11} {}\n",
                   row.count,
                   row.action,
                   row.op,
                   row.kind,
                   row.axes,
                   name(row.purpose),
                   sent_text(row.sent));
  }
  return text;
}

}  // namespace

std::string summary_text(const Explanation& facts) {
  std::string text = model_text(facts) + step_text(facts);
  if (facts.num_ranks() > 1) {
    text += mesh_text(facts.layout().mesh) + placement_text(facts) + pipeline_text(facts);
  }
  text += memory_text(facts) + work_text(facts);
  for (std::size_t place = 0; place < facts.work.size(); ++place) {
    text += traffic_text(facts, place);
  }
  return text + format("\nmore: --parameters, --ops, --program,{} or all as --json\n",
                       facts.run.plan.pipeline ? " --schedule, --gantt=FILE.svg," : "");
}

std::string parameters_text(const Explanation& facts) {
  std::string text = "parameters: whole, on the axes that cut it, and at rest on a rank\n";
  for (const ParameterPlace& place : parameter_places(facts)) {
    text += format(
        "  {:<40} {:<44} {:<24} {}{}\n",
        place.name,
        to_string(place.whole),
        place.axes.empty() ? "-" : place.axes,
        place.sliced ? format("a slice of {}", place.elements_at_rest) : to_string(place.local),
        place.buffer ? " (a buffer)" : "");
  }
  return text;
}

std::string ops_text(const Explanation& facts) {
  std::string text;
  for (std::size_t place = 0; place < facts.work.size(); ++place) {
    text += (place > 0 ? "\n" : "") + rank_ops_text(facts, place);
  }
  return text;
}

}  // namespace tessera
