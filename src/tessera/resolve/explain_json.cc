#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/actions/timeline.h"
#include "tessera/mesh/placement.h"
#include "tessera/resolve/explain.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson target_json(const Target& target) {
  return {{"kind", to_string(target.kind)},
          {"processor", target.processor},
          {"device", target.device.name}};
}

OrderedJson step_json(const Explanation& facts) {
  const RunConfig& config = facts.config;
  return {{"dtype", name(config.train.dtype)},
          {"sequences", config.train.global_batch},
          {"sequence_length", config.data.sequence_length},
          {"tokens", facts.tokens_per_step()},
          {"microbatches", facts.run.plan.num_microbatches},
          {"microbatch", config.train.microbatch},
          {"training_flop_per_token", facts.flop_per_token()}};
}

OrderedJson mesh_json(const Mesh& mesh) {
  OrderedJson axes = OrderedJson::array();
  for (const MeshAxis& axis : mesh.axes) {
    axes.push_back({{"name", axis.name},
                    {"ranks", axis.size},
                    {"stride", axis.stride},
                    {"level", axis.level}});
  }
  return {{"ranks", mesh.num_ranks()}, {"axes", axes}};
}

OrderedJson wire_json(const Wire& wire) {
  OrderedJson formats = OrderedJson::array();
  for (const WireFormat format : wire.formats) {
    formats.push_back(name(format));
  }
  return formats;
}

OrderedJson state_json(const Explanation& facts) {
  const RunLayout& layout = facts.layout();
  const Placement& placement = layout.placement;
  const StateWires& wires = layout.wires;
  return {{"data_ranks", data_degrees(layout.mesh).back()},
          {"param", placement.param},
          {"secondary", placement.secondary},
          {"secondary_use", to_string(layout.secondary_use)},
          {"grad", placement.grad},
          {"optimizer", placement.optimizer},
          {"wires",
           {{"param", wire_json(wires.param)},
            {"secondary", wire_json(wires.secondary)},
            {"grad", wire_json(wires.grad)},
            {"update", wire_json(wires.update)},
            {"block", wires.param.block}}},
          {"notes", facts.notes}};
}

OrderedJson schedule_json(const Explanation& facts) {
  const PipelinePlan& plan = *facts.run.plan.pipeline;
  const Timeline time = timeline(plan.table, facts.run.stage_costs, facts.run.hop);
  OrderedJson stages = OrderedJson::array();
  for (std::size_t stage = 0; stage < plan.layers.size(); ++stage) {
    const ActionCosts& costs = facts.run.stage_costs[stage];
    stages.push_back({{"rank", plan.table.rank_of_stage[stage]},
                      {"layers", plan.layers[stage]},
                      {"cost",
                       {{"forward", costs.forward},
                        {"input_gradient", costs.input_gradient},
                        {"weight_gradient", costs.weight_gradient}}}});
  }
  OrderedJson ranks = OrderedJson::array();
  for (std::size_t rank = 0; rank < time.held_by_rank.size(); ++rank) {
    const PeakHeld& held = time.held_by_rank[rank];
    ranks.push_back({{"bubble", bubble(time, static_cast<std::int64_t>(rank))},
                     {"forwards_held", held.forwards},
                     {"weight_gradients_held", held.weight_gradients}});
  }
  return {{"schedule", facts.config.pipeline.schedule},
          {"microbatches", plan.table.microbatches},
          {"slices", plan.slice_lengths},
          {"stages", stages},
          {"hop", facts.run.hop > 0 ? OrderedJson(facts.run.hop) : OrderedJson()},
          {"makespan", time.makespan},
          {"bubble", bubble(time)},
          {"imbalance", imbalance(time)},
          {"ranks", ranks}};
}

// Null where it is none.
OrderedJson optional_json(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

// How layers are recomputed; "auto": what that came to, null where the run itself says how.
OrderedJson recompute_json(const Explanation& facts) {
  OrderedJson rules = OrderedJson::array();
  for (const RecomputeRule& rule : facts.run.plan.passes.recompute) {
    rules.push_back({{"first", rule.first},
                     {"last", std::min(rule.end, facts.model().num_layers) - 1},
                     {"kept", name(rule.kept)},
                     {"keep", rule.keep},
                     {"again", rule.again},
                     {"store", rule.store}});
  }
  OrderedJson chosen;
  if (facts.chosen) {
    chosen = {{"repeated", facts.chosen->repeated},
              {"for_states", optional_json(facts.chosen->for_states)},
              {"for_activations", optional_json(facts.chosen->for_layers)},
              {"moved_optimizer_bytes", facts.chosen->moved.optimizer},
              {"moved_parameter_bytes", facts.chosen->moved.parameters},
              {"all_bytes", facts.chosen->all_bytes}};
    if (facts.chosen->search) {
      chosen["least_bytes"] = facts.chosen->search->least_bytes;
      chosen["saved_by_gigabyte"] = optional_json(facts.chosen->search->saved_by_gigabyte);
    }
  }
  return {{"rules", rules}, {"auto", chosen}};
}

OrderedJson space_json(const RunMemory::OtherSpace& space) {
  return {{"bytes", space.bytes},
          {"fetched_per_step", space.traffic.fetched},
          {"stored_per_step", space.traffic.stored}};
}

OrderedJson memory_json(const Explanation& facts) {
  OrderedJson categories = OrderedJson::object();
  for (const MemoryRow& row : facts.memory.categories) {
    categories[std::string(name(row.category))] = row.peak_bytes;
  }
  const MemoryFit& fit = facts.fit;
  const bool is_known = fit.of != MemoryFit::Limit::kNone;
  return {{"categories", categories},
          {"arena", facts.memory.arena},
          {"checkpoint", facts.memory.checkpoint_copy},
          {"host", space_json(facts.memory.host)},
          {"file", space_json(facts.memory.file)},
          {"needed", fit.needed},
          {"limit", is_known ? OrderedJson(fit.limit) : OrderedJson()},
          {"limit_of", is_known ? OrderedJson(name(fit.of)) : OrderedJson()},
          {"fits", is_known ? OrderedJson(fit.needed <= fit.limit) : OrderedJson()},
          {"recompute", recompute_json(facts)}};
}

OrderedJson cost_json(const Cost& cost) {
  return {
      {"flop", cost.flop}, {"bytes_read", cost.bytes_read}, {"bytes_written", cost.bytes_written}};
}

OrderedJson work_json(const RankWork& rank, const Target& target) {
  OrderedJson ops = OrderedJson::array();
  for (const CostRow& row : rank.ops) {
    OrderedJson op = {{"op", row.op}, {"runs", row.count}};
    op.update(cost_json(row.cost));
    ops.push_back(op);
  }
  OrderedJson work = cost_json(rank.cost);
  work["ops"] = ops;
  if (target.kind == DeviceKind::kCuda) {
    const auto runs = [](const AttentionRuns& of) -> OrderedJson {
      return {{"runs", of.all}, {"own_kernels", of.own}};
    };
    work["attention"] = runs(rank.attention);
    work["attention_backward"] = runs(rank.attention_backward);
  }
  work["gathered_heads"] = rank.gathered_heads;
  return work;
}

OrderedJson classes_json(const ClassBytes& bytes) {
  OrderedJson classes = OrderedJson::object();
  for (const TrafficClass traffic_class : kTrafficClasses) {
    classes[std::string(name(traffic_class))] = bytes.at(static_cast<std::size_t>(traffic_class));
  }
  return classes;
}

OrderedJson traffic_json(const RankWork& rank) {
  OrderedJson levels = OrderedJson::array();
  for (const LevelTraffic& level : rank.levels) {
    OrderedJson purposes = OrderedJson::object();
    for (const TrafficPurpose purpose : kTrafficPurposes) {
      purposes[std::string(name(purpose))] = level.by_purpose.at(static_cast<std::size_t>(purpose));
    }
    const auto seconds = level.seconds();
    levels.push_back({{"level", level.level},
                      {"classes", classes_json(level.bytes)},
                      {"purposes", purposes},
                      {"bandwidth", seconds ? OrderedJson(level.bandwidth) : OrderedJson()},
                      {"seconds", seconds ? OrderedJson(*seconds) : OrderedJson()}});
  }
  OrderedJson collectives = OrderedJson::array();
  for (const CollectiveRow& row : rank.collectives) {
    OrderedJson sent = OrderedJson::object();
    for (const auto& [axis, bytes] : row.sent) {
      sent[axis] = classes_json(bytes);
    }
    collectives.push_back({{"action", row.action},
                           {"op", row.op},
                           {"kind", row.kind},
                           {"axes", row.axes},
                           {"purpose", name(row.purpose)},
                           {"count", row.count},
                           {"sent", sent}});
  }
  return {{"levels", levels}, {"collectives", collectives}};
}

OrderedJson shape_json(const TensorType& type) {
  OrderedJson shape = OrderedJson::array();
  for (const Dim& dim : type.dims) {
    shape.push_back(dim.bound);
  }
  return shape;
}

OrderedJson parameters_json(const Explanation& facts) {
  OrderedJson tensors = OrderedJson::array();
  for (const ParameterPlace& place : parameter_places(facts)) {
    tensors.push_back({{"name", place.name},
                       {"dtype", name(place.whole.dtype)},
                       {"shape", shape_json(place.whole)},
                       {"axes", place.axes},
                       {"local_shape", shape_json(place.local)},
                       {"elements_at_rest", place.elements_at_rest},
                       {"frozen", place.frozen},
                       {"buffer", place.buffer}});
  }
  return {{"all", facts.counts.all},
          {"frozen", facts.counts.frozen},
          {"buffers", facts.counts.buffers},
          {"tensors", tensors}};
}

// What ranks of each place along the pipeline need, do and send.
OrderedJson pipeline_json(const Explanation& facts, bool with_program) {
  OrderedJson ranks = OrderedJson::array();
  for (std::size_t place = 0; place < facts.work.size(); ++place) {
    OrderedJson rank = {{"first_rank", facts.programs.first_rank(place)},
                        {"needed", facts.memory.by_pipeline_rank[place]},
                        {"work", work_json(facts.work[place], facts.run.target)},
                        {"traffic", traffic_json(facts.work[place])}};
    if (with_program) {
      rank["program"] = to_string(facts.programs[place].step);
    }
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace

std::string explanation_json(const Explanation& facts, bool with_program) {
  OrderedJson json = {{"version", 1},
                      {"model", OrderedJson::parse(facts.model().json)},
                      {"target", target_json(facts.run.target)},
                      {"plan", to_string(facts.run.plan)},
                      {"step", step_json(facts)},
                      {"mesh", mesh_json(facts.layout().mesh)},
                      {"state", state_json(facts)},
                      {"memory", memory_json(facts)},
                      {"work", work_json(facts.work[0], facts.run.target)},
                      {"traffic", traffic_json(facts.work[0])},
                      {"parameters", parameters_json(facts)}};
  if (with_program) {
    json["program"] = to_string(facts.programs[0].step);
  }
  if (facts.run.plan.pipeline) {
    json["pipeline"] = schedule_json(facts);
  }
  if (facts.work.size() > 1) {
    json["pipeline_ranks"] = pipeline_json(facts, with_program);
  }
  return json.dump() + "\n";
}

}  // namespace tessera
