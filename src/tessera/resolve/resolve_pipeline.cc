#include "tessera/resolve/resolve_pipeline.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tessera/actions/check.h"
#include "tessera/actions/csv.h"
#include "tessera/actions/schedules.h"
#include "tessera/actions/split_tokens.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/plan/model_costs.h"
#include "tessera/resolve/resolve_layout.h"

namespace tessera {
namespace {

ResolvedPipeline read_table(const RunConfig& config, std::int64_t microbatches) {
  const std::string& path = config.pipeline.schedule;
  TESSERA_REQUIRE(!config.pipeline.chunks,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, but pipeline.schedule = \"{}\" is a table, which says the stages "
                  "of each rank: leave it out",
                  placed(config, "pipeline.chunks"),
                  *config.pipeline.chunks,
                  path);
  ParsedTable parsed = with_context([&] { return placed(config, "pipeline.schedule"); },
                                    [&] { return parse_table(read_file(path), path); });
  ResolvedPipeline resolved = {.plan = {.table = std::move(parsed.table), .layers = {}},
                               .stage_costs = {},
                               .hop = 0.0,
                               .notes = std::move(parsed.notes)};
  std::vector<std::string> notes =
      with_context([&] { return placed(config, "pipeline.schedule"); },
                   [&] { return check(resolved.plan.table, parsed.places); });
  std::ranges::move(notes, std::back_inserter(resolved.notes));
  const bool has_ranks = resolved.plan.table.ranks == config.parallel.pipeline;
  with_context(
      [&] { return placed(config, has_ranks ? "train.global_batch" : "parallel.pipeline"); },
      [&] { require_run(resolved.plan.table, path, config.parallel.pipeline, microbatches); });
  TESSERA_REQUIRE(resolved.plan.table.slices == config.pipeline.slices,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, but pipeline.schedule = \"{}\" is a table of {}: expected {}",
                  placed(config, "pipeline.slices"),
                  config.pipeline.slices,
                  path,
                  resolved.plan.table.slices == 1 ? "whole sequences"
                                                  : format("{} slices", resolved.plan.table.slices),
                  resolved.plan.table.slices);
  return resolved;
}

// The key whose number of stages is too large where the model's layers are too few.
const char* stages_key(const RunConfig& config) {
  return config.pipeline.chunks ? "pipeline.chunks" : "parallel.pipeline";
}

// Before there is a table, which may be one of millions of stages.
void require_num_stages(const RunConfig& config,
                        const ScheduleRequest& request,
                        std::int64_t num_layers) {
  if (config.pipeline.layers) {
    with_context([&] { return placed(config, "pipeline.layers"); },
                 [&] {
                   require_layers(
                       *config.pipeline.layers, request.ranks * request.chunks, num_layers);
                 });
    return;
  }
  with_context([&] { return placed(config, stages_key(config)); },
               [&] { require_parts(request.ranks, request.chunks, num_layers); });
}

ResolvedPipeline make_named(const RunConfig& config,
                            std::int64_t microbatches,
                            std::int64_t num_layers) {
  const PipelineSchedule schedule =
      with_context([&] { return placed(config, "pipeline.schedule"); },
                   [&] { return parse_pipeline_schedule(config.pipeline.schedule); });
  const ScheduleRequest request = {
      .schedule = schedule,
      .ranks = config.parallel.pipeline,
      .chunks = config.pipeline.chunks.value_or(default_chunks(schedule)),
      .microbatches = microbatches,
      .slices = config.pipeline.slices};
  with_context([&] { return placed(config, "pipeline.chunks"); }, [&] { require_chunks(request); });
  with_context([&] { return placed(config, "pipeline.slices"); }, [&] { require_slices(request); });
  require_num_stages(config, request, num_layers);
  // What else a schedule refuses is a number of microbatches, or a table beyond all use.
  return with_context([&] { return placed(config, "train.global_batch"); },
                      [&] {
                        return ResolvedPipeline{
                            .plan = {.table = make_table(request), .layers = {}},
                            .stage_costs = {},
                            .hop = 0.0,
                            .notes = schedule_notes(request)};
                      });
}

// With fewer microbatches, or slices of them, than ranks some rank is idle at any time of a step.
std::optional<std::string> idle_note(const ActionTable& table) {
  if (table.microbatches * table.slices >= table.ranks) {
    return std::nullopt;
  }
  return format(
      "a step has {}{} (train.global_batch / (data * microbatch)) for {} pipeline ranks, "
      "which wait {:.1f} % of it if stages are equal: as many microbatches as ranks, or "
      "more, let them wait less",
      table.microbatches == 1 ? "1 microbatch" : format("{} microbatches", table.microbatches),
      table.slices == 1 ? "" : format(" of {} slices", table.slices),
      table.ranks,
      100.0 * bubble(timeline(table)));
}

// Seconds from the end of a forward to its value's arrival at the next stage, over the slowest of
// the levels that stages are apart by; 0 where the cluster file says nothing of these.
double hop_seconds(const Plan& plan, std::int64_t slices, const std::vector<Level>& levels) {
  const double bytes = static_cast<double>(boundary_bytes(plan)) / static_cast<double>(slices);
  double slowest = 0.0;
  for (const MeshAxis& axis : plan.layout.mesh.axes) {
    const auto level = std::ranges::find(levels, axis.level, &Level::name);
    if (axis.group != AxisGroup::kPipeline || level == levels.end()) {
      continue;
    }
    const double bandwidth = bandwidth_of(levels, axis.level);
    slowest = std::max(slowest, level->latency + (bandwidth > 0 ? bytes / bandwidth : 0.0));
  }
  return slowest;
}

// What does not go with slices of the tokens.
void require_sliceable(const RunConfig& config, const Plan& plan) {
  const std::int64_t slices = config.pipeline.slices;
  if (slices == 1) {
    return;
  }
  TESSERA_REQUIRE(plan.optimizer.gradients == DType::kF32,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, with optimizer.gradients = \"bf16\", which are not added up: "
                  "expected f32, or 1",
                  placed(config, "pipeline.slices"),
                  slices);
}

// Which cost about as much, for the FLOP that the model's tokens need.
std::vector<std::int64_t> slice_lengths(const RunConfig& config, const Plan& plan) {
  const std::int64_t slices = config.pipeline.slices;
  if (slices == 1) {
    return {};
  }
  // Along the sequence each tensor rank has as many of a slice's tokens.
  const std::int64_t unit = config.parallel.sequence_parallel ? config.parallel.tensor : 1;
  TESSERA_REQUIRE(slices <= plan.sequence_length / unit,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, but {} make at most {} that {} divide: expected that or fewer, "
                  "longer sequences or parallel.sequence_parallel = false",
                  placed(config, "pipeline.slices"),
                  slices,
                  format_plural(plan.sequence_length, "token"),
                  plan.sequence_length / unit,
                  format_plural(unit, "tensor rank"));
  TESSERA_REQUIRE(plan.sequence_length % unit == 0,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, but {} do not divide {}: expected 1, another "
                  "data.sequence_length or parallel.sequence_parallel = false",
                  placed(config, "pipeline.slices"),
                  slices,
                  format_plural(unit, "tensor rank"),
                  format_plural(plan.sequence_length, "token"));
  return split_tokens(plan.sequence_length, slices, token_growth(plan), unit);
}

}  // namespace

std::optional<ResolvedPipeline> resolve_pipeline(const RunConfig& config,
                                                 const Plan& plan,
                                                 const Target& target) {
  if (config.parallel.pipeline == 1) {
    return std::nullopt;
  }
  require_sliceable(config, plan);
  ResolvedPipeline resolved =
      is_table(config.pipeline) ? read_table(config, plan.num_microbatches)
                                : make_named(config, plan.num_microbatches, plan.model.num_layers);
  PipelinePlan& pipeline = resolved.plan;
  pipeline.slice_lengths = slice_lengths(config, plan);
  if (const std::optional<std::string> note = idle_note(pipeline.table)) {
    resolved.notes.push_back(*note);
  }
  const ResolvedLayout layout = resolve_layout(config);
  const DeviceSpec& device = has_speed(target.device, plan.dtype) ? target.device : layout.device;
  const ModelCosts costs = model_costs(plan, device);
  if (has_speed(device, plan.dtype)) {
    resolved.hop = hop_seconds(plan, pipeline.table.slices, layout.levels);
  }
  if (config.pipeline.layers) {
    pipeline.layers = *config.pipeline.layers;
    with_context(
        [&] { return placed(config, "pipeline.layers"); },
        [&] { require_layers(pipeline.layers, pipeline.table.stages, plan.model.num_layers); });
  } else {
    pipeline.layers = with_context(
        [&] { return placed(config, stages_key(config)); },
        [&] { return split_layers(pipeline.table, costs, resolved.hop).layers_of_stage; });
  }
  resolved.stage_costs = stage_costs(costs, pipeline.layers);
  return resolved;
}

}  // namespace tessera
