#include <cstddef>
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "tessera/mesh/placement.h"
#include "tessera/train/explain.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

Json step_json(const Explanation& facts) {
  const RunConfig& config = facts.config;
  return {{"dtype", name(config.train.dtype)},
          {"sequences", config.train.global_batch},
          {"sequence_length", config.data.sequence_length},
          {"tokens", facts.tokens_per_step()},
          {"microbatches", facts.programs.step.num_microbatches},
          {"microbatch", config.train.microbatch},
          {"training_flop_per_token", facts.flop_per_token()}};
}

Json mesh_json(const Mesh& mesh) {
  Json axes = Json::array();
  for (const MeshAxis& axis : mesh.axes) {
    axes.push_back({{"name", axis.name},
                    {"ranks", axis.size},
                    {"stride", axis.stride},
                    {"level", axis.level}});
  }
  return {{"ranks", mesh.num_ranks()}, {"axes", axes}};
}

Json wire_json(const Wire& wire) {
  Json formats = Json::array();
  for (const WireFormat format : wire.formats) {
    formats.push_back(name(format));
  }
  return formats;
}

Json state_json(const RunLayout& layout) {
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
          {"notes", layout.notes}};
}

Json memory_json(const Explanation& facts) {
  Json categories = Json::object();
  for (const MemoryRow& row : facts.memory.categories) {
    categories[std::string(name(row.category))] = row.peak_bytes;
  }
  const MemoryFit& fit = facts.fit;
  const bool is_known = fit.of != MemoryFit::Limit::kNone;
  return {{"categories", categories},
          {"arena", facts.memory.arena},
          {"checkpoint", facts.memory.checkpoint_copy},
          {"needed", fit.needed},
          {"limit", is_known ? Json(fit.limit) : Json()},
          {"limit_of", is_known ? Json(name(fit.of)) : Json()},
          {"fits", is_known ? Json(fit.needed <= fit.limit) : Json()}};
}

Json cost_json(const Cost& cost) {
  return {
      {"flop", cost.flop}, {"bytes_read", cost.bytes_read}, {"bytes_written", cost.bytes_written}};
}

Json work_json(const Explanation& facts) {
  Json ops = Json::array();
  for (const CostRow& row : facts.ops) {
    Json op = {{"op", row.op}, {"runs", row.count}};
    op.update(cost_json(row.cost));
    ops.push_back(op);
  }
  Json work = cost_json(facts.cost);
  work["ops"] = ops;
  return work;
}

Json classes_json(const ClassBytes& bytes) {
  Json classes = Json::object();
  for (const TrafficClass traffic_class : kTrafficClasses) {
    classes[std::string(name(traffic_class))] = bytes.at(static_cast<std::size_t>(traffic_class));
  }
  return classes;
}

Json traffic_json(const Explanation& facts) {
  Json levels = Json::array();
  for (const LevelTraffic& level : facts.levels) {
    Json purposes = Json::object();
    for (const TrafficPurpose purpose : kTrafficPurposes) {
      purposes[std::string(name(purpose))] = level.by_purpose.at(static_cast<std::size_t>(purpose));
    }
    const auto seconds = level.seconds();
    levels.push_back({{"level", level.level},
                      {"classes", classes_json(level.bytes)},
                      {"purposes", purposes},
                      {"bandwidth", seconds ? Json(level.bandwidth) : Json()},
                      {"seconds", seconds ? Json(*seconds) : Json()}});
  }
  Json collectives = Json::array();
  for (const CollectiveRow& row : facts.collectives) {
    Json sent = Json::object();
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

Json shape_json(const TensorType& type) {
  Json shape = Json::array();
  for (const Dim& dim : type.dims) {
    shape.push_back(dim.bound);
  }
  return shape;
}

Json parameters_json(const Explanation& facts) {
  Json tensors = Json::array();
  for (const ParameterPlace& place : parameter_places(facts)) {
    tensors.push_back({{"name", place.name},
                       {"dtype", name(place.whole.dtype)},
                       {"shape", shape_json(place.whole)},
                       {"axes", place.axes},
                       {"local_shape", shape_json(place.local)},
                       {"elements_at_rest", place.elements_at_rest},
                       {"frozen", place.frozen}});
  }
  return {{"all", facts.counts.all}, {"frozen", facts.counts.frozen}, {"tensors", tensors}};
}

}  // namespace

std::string explanation_json(const Explanation& facts, bool with_program) {
  Json json = {{"version", 1},
               {"model", Json::parse(facts.model.json)},
               {"step", step_json(facts)},
               {"mesh", mesh_json(facts.layout.mesh)},
               {"state", state_json(facts.layout)},
               {"memory", memory_json(facts)},
               {"work", work_json(facts)},
               {"traffic", traffic_json(facts)},
               {"parameters", parameters_json(facts)}};
  if (with_program) {
    json["program"] = to_string(facts.programs.step);
  }
  return json.dump() + "\n";
}

}  // namespace tessera
