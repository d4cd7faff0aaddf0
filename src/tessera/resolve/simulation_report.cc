#include "tessera/resolve/simulation_report.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/resolve/changed_keys.h"
#include "tessera/resolve/whole_training.h"

namespace tessera {
namespace {

using Object = nlohmann::ordered_json;

// Of samples, what is said.
constexpr double kMedian = 0.5;
constexpr double kMost = 0.95;

Cluster with_device(Cluster cluster) {
  DeviceSpec::PeakFlops& peaks = cluster.device.peak_flops;
  peaks = {.f32 = 2 * peaks.f32, .bf16 = 2 * peaks.bf16, .f8 = 2 * peaks.f8};
  return cluster;
}

Cluster with_memory(Cluster cluster) {
  cluster.device.memory_bandwidth *= 2;
  cluster.host.memory_bandwidth *= 2;
  return cluster;
}

Cluster with_level(Cluster cluster, std::size_t level) {
  cluster.levels[level].bandwidth *= 2;
  return cluster;
}

Cluster with_latency(Cluster cluster, std::size_t level) {
  cluster.levels[level].latency /= 2;
  return cluster;
}

std::vector<Doubled> double_resources(const SimulatedRun& run, const SimulationOptions& options) {
  const Cluster& cluster = run.cluster();
  std::vector<Doubled> doubled = {
      {.what = "arithmetic of the device",
       .seconds = run.step_seconds(with_device(cluster), options)},
      {.what = "memory bandwidth", .seconds = run.step_seconds(with_memory(cluster), options)}};
  for (std::size_t level = 0; level < cluster.levels.size(); ++level) {
    const std::string& name = cluster.levels[level].name;
    const std::vector<MeshAxis>& axes = run.mesh().axes;
    if (std::ranges::find(axes, name, &MeshAxis::level) != axes.end()) {
      doubled.push_back({.what = format("bandwidth of level {}", name),
                         .seconds = run.step_seconds(with_level(cluster, level), options)});
      doubled.push_back({.what = format("half the latency of level {}", name),
                         .seconds = run.step_seconds(with_latency(cluster, level), options)});
    }
  }
  if (options.issue > 0) {
    SimulationOptions faster = options;
    faster.issue /= 2;
    faster.issue_leg /= 2;
    doubled.push_back({.what = "speed at which hosts issue instructions",
                       .seconds = run.step_seconds(cluster, faster)});
  }
  std::ranges::stable_sort(doubled, {}, &Doubled::seconds);
  return doubled;
}

// "data.node on level node".
std::string where_text(const SimulationReport& report, bool is_transfer, std::size_t where) {
  if (is_transfer) {
    return format("on level {}", report.run.cluster().levels[where].name);
  }
  const MeshAxis& axis = report.run.mesh().axes[where];
  return format("along {}, on level {}", axis.name, axis.level);
}

bool is_transfer(const CauseRow& row) {
  return row.cause == Cause::kTransfer;
}

bool is_talk(const CauseRow& row) {
  return row.cause == Cause::kCollective || is_transfer(row);
}

std::string axes_text(const Mesh& mesh) {
  std::string text;
  for (const MeshAxis& axis : mesh.axes) {
    text += format("{}{} {}", text.empty() ? " = " : " x ", axis.name, axis.size);
  }
  return text;
}

std::string room_text(const Explanation& facts) {
  const MemoryFit& fit = facts.fit;
  return fit.of != MemoryFit::Limit::kNone ? format("{} of {} a rank{}",
                                                    format_bytes(fit.needed),
                                                    format_bytes(fit.limit),
                                                    fit.needed > fit.limit ? ": does not fit" : "")
                                           : format("{} a rank", format_bytes(fit.needed));
}

std::string flops_text(const SimulationReport& report) {
  const DeviceSpec& device = report.run.cluster().device;
  const DType dtype = report.run.facts()->run.plan.dtype;
  const double peak = dtype == DType::kF32 ? device.peak_flops.f32 : device.peak_flops.bf16;
  std::string text = format("{:.4g} TFLOP/s a device", report.flops() / 1e12);
  if (peak > 0.0) {
    text += format(" ({:.1f} % of its {} peak)", 100.0 * report.flops() / peak, name(dtype));
  }
  return text + ", of the model, half of causal attention";
}

// "llama3 8B".
std::string model_name(const Explanation& facts) {
  const ModelSection& model = facts.config.model;
  return format("{}{}{}", model.name, model.flavor.empty() ? "" : " ", model.flavor);
}

const std::string& program_name(const SimulatedRun& run) {
  return run.ranks().programs[0].program->name;
}

// What is simulated.
std::string subject_text(const SimulatedRun& run) {
  return run.facts() == nullptr ? format("program \"{}\"", program_name(run))
                                : model_name(*run.facts());
}

// As in explanation_json().
Object axes_json(const Mesh& mesh) {
  Object axes = Object::array();
  for (const MeshAxis& axis : mesh.axes) {
    axes.push_back({{"name", axis.name},
                    {"ranks", axis.size},
                    {"stride", axis.stride},
                    {"level", axis.level}});
  }
  return axes;
}

std::string run_text(const SimulationReport& report) {
  return format("   {} tokens/s   memory {}\n  {}",
                format_grouped(static_cast<std::int64_t>(report.tokens_per_second())),
                room_text(*report.run.facts()),
                flops_text(report));
}

WholeTraining training_of(const SimulationReport& report, double tokens) {
  return whole_training(
      *report.run.facts(), report.run.cluster(), tokens, report.tokens_per_second());
}

std::string training_text(const SimulationReport& report, double tokens) {
  constexpr double kSecondsPerDay = 86400.0;
  const WholeTraining training = training_of(report, tokens);
  const double seconds = training.seconds_of_checkpoint;
  return format(
      "\n{} tokens take {:.4g} days without a stop, {} device hours{}\n"
      "  {} of {}, {}\n",
      format_count(tokens),
      training.seconds / kSecondsPerDay,
      format_grouped(static_cast<std::int64_t>(training.device_hours)),
      training.usd > 0.0
          ? format(", {} USD", format_grouped(static_cast<std::int64_t>(training.usd)))
          : "",
      format_plural(training.num_checkpoints, "checkpoint"),
      format_bytes(training.checkpoint_bytes),
      seconds > 0.0 ? format("each written in {:.3g} s, {}",
                             seconds,
                             training.saves_in_background
                                 ? "beside the training"
                                 : format("which adds {:.3g} days",
                                          seconds * static_cast<double>(training.num_checkpoints) /
                                              kSecondsPerDay))
                    : "whose time is not known: the cluster file has no [storage]");
}

double percent(Ticks part, Ticks whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::string samples_text(const SimulationReport& report) {
  const SampledSteps& samples = *report.samples;
  return format(
      "\n{} with drawn speeds of the ranks, whose spread is {:.3g} %\n"
      "  median {:.4g} s, 95 % at most {:.4g} s, the longest {:.4g} s\n",
      format_plural(std::ssize(samples.seconds), "step"),
      100.0 * report.run.cluster().spread,
      samples.quantile(kMedian),
      samples.quantile(kMost),
      samples.seconds.back());
}

std::string row_text(const SimulationReport& report, const CauseRow& row) {
  std::string what(name(row.cause));
  if (is_talk(row)) {
    what += " " + where_text(report, is_transfer(row), row.where);
  }
  std::string text = format("  {:<52} {:>9.4g} s {:>6.1f} %",
                            what,
                            to_seconds(row.ticks),
                            percent(row.ticks, report.timeline.step));
  if (is_talk(row)) {
    text += format("   latency {:.3g}, bandwidth {:.3g}, sharing {:.3g}, others late {:.3g}",
                   to_seconds(row.latency),
                   to_seconds(row.moving),
                   to_seconds(row.shared),
                   to_seconds(row.away));
  }
  return text + "\n";
}

// Of a link's busy time, what nothing hides.
Ticks exposed(const Attribution& causes, const LinkRow& link) {
  Ticks ticks = 0;
  for (const CauseRow& row : causes.rows) {
    if (is_talk(row) && is_transfer(row) == link.is_transfer && row.where == link.where) {
      ticks += row.latency + row.moving + row.shared;
    }
  }
  return ticks;
}

std::string link_text(const SimulationReport& report,
                      const Attribution& causes,
                      const LinkRow& link) {
  return format("  {:<52} {:>9.4g} s busy, {:.0f} % of that hidden; {} sent\n",
                format("{} {}",
                       link.is_transfer ? "transfers" : "collectives",
                       where_text(report, link.is_transfer, link.where)),
                to_seconds(link.busy),
                link.busy > 0 ? 100.0 - percent(exposed(causes, link), link.busy) : 100.0,
                format_bytes(static_cast<std::int64_t>(link.sent)));
}

std::string class_text(const SimulationReport& report, std::size_t c) {
  const ClassTimeline& own = report.timeline.classes[c];
  const Attribution& causes = report.causes[c];
  std::string text =
      format("\nwhere rank {}'s step goes{}\n",
             own.first_rank,
             own.num_ranks > 1 ? format(", and those of {} ranks like it", own.num_ranks - 1) : "");
  for (const CauseRow& row : causes.rows) {
    text += row_text(report, row);
  }
  if (!causes.links.empty()) {
    text += "\nwhat its links do\n";
  }
  for (const LinkRow& link : causes.links) {
    text += link_text(report, causes, link);
  }
  return text;
}

Object row_json(const SimulationReport& report, const CauseRow& row) {
  Object json = {{"cause", name(row.cause)}, {"seconds", to_seconds(row.ticks)}};
  if (is_talk(row)) {
    const MeshAxis* const axis = is_transfer(row) ? nullptr : &report.run.mesh().axes[row.where];
    json["axis"] = axis != nullptr ? Object(axis->name) : Object();
    json["level"] = axis != nullptr ? axis->level : report.run.cluster().levels[row.where].name;
    json["latency"] = to_seconds(row.latency);
    json["bandwidth"] = to_seconds(row.moving);
    json["sharing"] = to_seconds(row.shared);
    json["others_late"] = to_seconds(row.away);
  }
  return json;
}

Object class_json(const SimulationReport& report, std::size_t c) {
  const ClassTimeline& own = report.timeline.classes[c];
  const Attribution& causes = report.causes[c];
  Object rows = Object::array();
  for (const CauseRow& row : causes.rows) {
    rows.push_back(row_json(report, row));
  }
  Object links = Object::array();
  for (const LinkRow& link : causes.links) {
    const Mesh& mesh = report.run.mesh();
    links.push_back({{"axis", link.is_transfer ? Object() : Object(mesh.axes[link.where].name)},
                     {"level",
                      link.is_transfer ? report.run.cluster().levels[link.where].name
                                       : mesh.axes[link.where].level},
                     {"busy_seconds", to_seconds(link.busy)},
                     {"exposed_seconds", to_seconds(exposed(causes, link))},
                     {"sent_bytes", link.sent}});
  }
  return {{"first_rank", own.first_rank},
          {"ranks", own.num_ranks},
          {"instructions", own.begin.size()},
          {"causes", rows},
          {"links", links}};
}

}  // namespace

std::string constants_text(const Cluster& cluster) {
  std::string unknown;
  for (const Level& level : cluster.levels) {
    unknown += level.bandwidth == 0.0
                   ? format("; level {} has no bandwidth: bytes take no time there", level.name)
                   : "";
  }
  if (!cluster.device.curve) {
    return "estimates: the cluster file has no curve of its device" + unknown;
  }
  return (cluster.curve_source.empty() ? "the cluster file says no source" : cluster.curve_source) +
         unknown;
}

std::size_t SimulationReport::critical() const {
  return static_cast<std::size_t>(&timeline.critical() - timeline.classes.data());
}

double SimulationReport::seconds() const {
  return to_seconds(timeline.step);
}

double SimulationReport::tokens_per_second() const {
  return static_cast<double>(run.facts()->tokens_per_step()) / seconds();
}

double SimulationReport::flops() const {
  return run.facts()->flop_per_token() * tokens_per_second() /
         static_cast<double>(run.mesh().num_ranks());
}

SimulationReport make_simulation_report(const SimulatedRun& run,
                                        const SimulationOptions& options,
                                        bool doubles) {
  SimulationReport report = {.run = run, .timeline = run.simulate(options)};
  SimulationOptions alone = options;
  alone.contention = false;
  report.bound = to_seconds(run.simulate(alone).step);
  const RankPrograms ranks = run.ranks();
  for (std::size_t c = 0; c < report.timeline.classes.size(); ++c) {
    report.causes.push_back(attribute(ranks, report.timeline, c));
  }
  if (doubles) {
    report.doubled = double_resources(run, options);
  }
  return report;
}

std::string simulation_text(const SimulationReport& report) {
  const Cluster& cluster = report.run.cluster();
  const std::size_t critical = report.critical();
  std::string text = format(
      "{} on {}, {}{}; {} instructions a rank; {} of ranks\n"
      "  constants: {}\n{}"
      "step {:.4g} s{}\n"
      "  where nothing shared anything, this order of the work would take {:.4g} s\n",
      subject_text(report.run),
      cluster.name,
      format_plural(report.run.mesh().num_ranks(), "rank"),
      axes_text(report.run.mesh()),
      format_grouped(std::ssize(report.timeline.classes[critical].begin)),
      format_plural(std::ssize(report.timeline.classes), "kind"),
      constants_text(cluster),
      report.software.empty() ? "" : format("  as: {}\n", report.software),
      report.seconds(),
      report.run.facts() != nullptr ? run_text(report) : "",
      report.bound);
  text += class_text(report, critical);
  if (report.tokens && report.run.facts() != nullptr) {
    text += training_text(report, *report.tokens);
  }
  if (report.samples) {
    text += samples_text(report);
  }
  if (!report.doubled.empty()) {
    text += "\nthe step with twice of one thing, each simulated\n";
  }
  for (const Doubled& each : report.doubled) {
    text += format("  {:<52} {:>9.4g} s {:>+6.1f} %\n",
                   each.what,
                   each.seconds,
                   100.0 * (each.seconds / report.seconds() - 1.0));
  }
  return text;
}

std::string simulation_json(const SimulationReport& report) {
  Object classes = Object::array();
  for (std::size_t c = 0; c < report.timeline.classes.size(); ++c) {
    classes.push_back(class_json(report, c));
  }
  Object doubled = Object::array();
  for (const Doubled& each : report.doubled) {
    doubled.push_back({{"what", each.what}, {"step_seconds", each.seconds}});
  }
  const Cluster& cluster = report.run.cluster();
  const bool has_model = report.run.facts() != nullptr;
  Object json = {{"cluster", cluster.name},
                 {"constants", constants_text(cluster)},
                 {"is_estimate", !cluster.device.curve.has_value()},
                 {"software", report.software},
                 {has_model ? "model" : "program",
                  has_model ? model_name(*report.run.facts()) : program_name(report.run)},
                 {"ranks", report.run.mesh().num_ranks()},
                 {"axes", axes_json(report.run.mesh())},
                 {"step_seconds", report.seconds()},
                 {"bound_seconds", report.bound}};
  if (const Explanation* facts = report.run.facts()) {
    json["tokens_per_second"] = report.tokens_per_second();
    json["model_flops"] = report.flops();
    json["memory_bytes"] = facts->fit.needed;
    json["memory_limit_bytes"] = facts->fit.limit;
    for (const auto& [key, value] : step_keys(facts->config)) {
      json["keys"][key] = value;
    }
  }
  if (report.tokens && report.run.facts() != nullptr) {
    const WholeTraining training = training_of(report, *report.tokens);
    const double seconds = training.seconds_of_checkpoint;
    json["training"] = {{"tokens", *report.tokens},
                        {"seconds", training.seconds},
                        {"device_hours", training.device_hours},
                        {"usd", training.usd > 0.0 ? Object(training.usd) : Object()},
                        {"checkpoints", training.num_checkpoints},
                        {"checkpoint_bytes", training.checkpoint_bytes},
                        {"checkpoint_seconds", seconds > 0.0 ? Object(seconds) : Object()},
                        {"saves_in_background", training.saves_in_background}};
  }
  if (report.samples) {
    json["samples"] = {{"count", report.samples->seconds.size()},
                       {"median_seconds", report.samples->quantile(kMedian)},
                       {"p95_seconds", report.samples->quantile(kMost)},
                       {"longest_seconds", report.samples->seconds.back()}};
  }
  json["critical_class"] = report.critical();
  json["classes"] = std::move(classes);
  json["doubled"] = std::move(doubled);
  return json.dump(2) + "\n";
}

}  // namespace tessera
