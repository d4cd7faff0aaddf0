#include "tessera/passes/ranks/shard_parameters.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"
#include "tessera/passes/ranks/state_axes.h"

namespace tessera {
namespace {

// What shares one gather: a layer's forward, or its backward; outside the layers, a chunk's.
struct GatherUse {
  bool forward = true;
  std::int32_t layer = -1;
  std::int32_t chunk = 0;

  friend auto operator<=>(const GatherUse&, const GatherUse&) = default;
};

// The gradients of the loss follow it at once, and fuse() joins them where they read one head.
GatherUse gather_use_of(const Node& node) {
  const bool is_loss = node.op->get_if<CrossEntropyAttrs>() != nullptr;
  return {.forward = node.phase == Phase::kForward || is_loss,
          .layer = node.layer,
          .chunk = node.chunk};
}

// Where a parameter's gathers read: its slices, and its copy, where there is none the same.
struct Kept {
  StateAxes state;  // its own
  TensorType whole;
  ValueId slices;
  ValueId copy;
};

bool has_secondary(const StateAxes& state) {
  return state.secondary < state.param;
}

bool reads_secondary(const StateAxes& state, const GatherUse& use) {
  return has_secondary(state) && !(use.forward && state.secondary_use == SecondaryUse::kBackward);
}

// Cuts the parameters of `graph`, and adds their copies.
std::map<ValueId, Kept> cut_parameters(Graph& graph, const StateAxes& of_all, const DimAxes& dims) {
  std::map<ValueId, Kept> kept;
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    const TensorType whole = graph[parameter].type;
    StateAxes state = state_axes_of(whole, dims, of_all);
    if (state.param == 0) {
      continue;
    }
    graph[parameter].type = slice_type(state, whole, state.param);
    ValueId copy = parameter;
    if (has_secondary(state)) {
      const std::string name = graph[parameter].name;
      copy =
          graph.add_state({.parameter = name,
                           .role = StateRole::kSecondary,
                           .wire = part_of(state, state.wires.param, state.secondary, state.param)},
                          format("secondary.{}", name),
                          slice_type(state, whole, state.secondary));
    }
    kept[parameter] = {
        .state = std::move(state), .whole = whole, .slices = parameter, .copy = copy};
  }
  return kept;
}

// The gather of `whole` from slices over `count` axes.
OpRef gather_of(const StateAxes& state,
                const TensorType& whole,
                std::size_t count,
                const Wire& wire) {
  return make_op(GatherSlicesAttrs{.axes = axes_between(state, 0, count),
                                   .type = whole,
                                   .wire = part_of(state, wire, 0, count).formats,
                                   .block = wire.block});
}

}  // namespace

bool reads_secondary(const StateAxes& state, const Node& node) {
  return reads_secondary(state, gather_use_of(node));
}

Graph shard_parameters(const Graph& graph, const StateAxes& state, const DimAxes& dims) {
  Graph sliced = graph;
  const std::map<ValueId, Kept> kept = cut_parameters(sliced, state, dims);
  GraphEdit edit(sliced);
  std::map<std::pair<ValueId, GatherUse>, ValueId> gathered;
  // What `node`, number `i`, reads of a parameter.
  const auto read = [&](std::size_t i, const Node& node, const Kept& sources) {
    const GatherUse use = gather_use_of(node);
    const StateAxes& own = sources.state;
    const bool reads_copy = reads_secondary(own, use);
    if (reads_copy && own.secondary == 0) {
      return sources.copy;
    }
    const auto [found, is_new] = gathered.try_emplace({sources.slices, use});
    if (is_new) {
      found->second = edit.fresh();
      edit.insert(
          NodeId::of(i),
          {.op = reads_copy ? gather_of(own, sources.whole, own.secondary, own.wires.secondary)
                            : gather_of(own, sources.whole, own.param, own.wires.param),
           .operands = {reads_copy ? sources.copy : sources.slices},
           .results = {found->second},
           .phase = node.phase,
           .layer = node.layer,
           .chunk = node.chunk});
    }
    return found->second;
  };
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    for (std::size_t operand = 0; operand < node.operands.size(); ++operand) {
      const auto parameter = kept.find(node.operands[operand]);
      if (parameter != kept.end()) {
        edit.set_operand(NodeId::of(i), operand, read(i, node, parameter->second));
      }
    }
  }
  return edit.apply();
}

}  // namespace tessera
