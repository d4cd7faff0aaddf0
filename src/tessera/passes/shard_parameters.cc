#include <map>
#include <utility>
#include <vector>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph_edit.h"
#include "tessera/passes/pass.h"
#include "tessera/passes/state_slices.h"

namespace tessera {
namespace {

// What shares one gather: a layer's forward, or its backward.
struct Use {
  bool forward = true;
  std::int32_t layer = -1;

  friend auto operator<=>(const Use&, const Use&) = default;
};

// The gradients of the loss follow it at once, and fuse() joins them where they read one head.
Use use_of(const Node& node) {
  const bool is_loss = node.op->get_if<CrossEntropyAttrs>() != nullptr;
  return {.forward = node.phase == Phase::kForward || is_loss, .layer = node.layer};
}

// Where a parameter's gathers read: its slices, and its copy, where there is none the same.
struct Kept {
  TensorType whole;
  ValueId slices;
  ValueId copy;
};

}  // namespace

Graph shard_parameters(const Graph& graph, const StateAxes& state) {
  if (state.param == 0) {
    return graph;
  }
  const bool has_secondary = state.secondary < state.param;
  Graph sliced = graph;
  std::map<ValueId, Kept> kept;
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    const TensorType whole = graph[parameter].type;
    sliced[parameter].type = slice_type(state, whole, state.param);
    Kept& sources = kept[parameter];
    sources = {.whole = whole, .slices = parameter, .copy = parameter};
    if (has_secondary) {
      sources.copy = sliced.add_source(ValueKind::kSecondary,
                                       secondary_name(graph[parameter].name),
                                       slice_type(state, whole, state.secondary));
    }
  }
  const auto gather_over = [&](std::size_t count, const Wire& wire) {
    return GatherSlicesAttrs{.axes = axes_text(state, 0, count),
                             .type = {},
                             .wire = wire_text(state, wire, 0, count),
                             .block = wire.block};
  };
  const GatherSlicesAttrs of_slices = gather_over(state.param, state.wires.param);
  const GatherSlicesAttrs of_copy =
      has_secondary ? gather_over(state.secondary, state.wires.secondary) : of_slices;
  GraphEdit edit(sliced);
  std::map<std::pair<ValueId, Use>, ValueId> gathered;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const Use use = use_of(node);
    const bool reads_copy =
        has_secondary && !(use.forward && state.secondary_use == SecondaryUse::kBackward);
    for (std::size_t operand = 0; operand < node.operands.size(); ++operand) {
      const auto parameter = kept.find(node.operands[operand]);
      if (parameter == kept.end()) {
        continue;
      }
      const Kept& sources = parameter->second;
      const ValueId source = reads_copy ? sources.copy : sources.slices;
      if (reads_copy && state.secondary == 0) {
        edit.set_operand(NodeId::of(i), operand, source);
        continue;
      }
      const auto [found, is_new] = gathered.try_emplace({parameter->first, use});
      if (is_new) {
        found->second = edit.fresh();
        GatherSlicesAttrs attrs = reads_copy ? of_copy : of_slices;
        attrs.type = to_string(sources.whole);
        edit.insert(NodeId::of(i),
                    {.op = make_op(std::move(attrs)),
                     .operands = {source},
                     .results = {found->second},
                     .phase = node.phase,
                     .layer = node.layer});
      }
      edit.set_operand(NodeId::of(i), operand, found->second);
    }
  }
  return edit.apply();
}

}  // namespace tessera
