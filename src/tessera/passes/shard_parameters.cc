#include <map>
#include <utility>
#include <vector>

#include "tessera/mesh/placement.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph_edit.h"
#include "tessera/passes/pass.h"

namespace tessera {
namespace {

// What shares one gather: a layer's forward, or its backward.
struct Use {
  bool forward = true;
  std::int32_t layer = -1;

  friend auto operator<=>(const Use&, const Use&) = default;
};

}  // namespace

Graph shard_parameters(const Graph& graph, const StateAxes& state) {
  if (state.param == 0) {
    return graph;
  }
  const AxisSizes axes(state.axes.begin(),
                       state.axes.begin() + static_cast<std::ptrdiff_t>(state.param));
  Graph sliced = graph;
  std::map<ValueId, TensorType> whole;  // by parameter
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    TensorType& type = sliced[parameter].type;
    whole[parameter] = type;
    const std::int64_t padded = padded_elements(type.num_elements(), num_ranks(state.axes));
    type.dims = {{.name = std::string(kSliceDim), .bound = padded / num_ranks(axes)}};
  }
  GraphEdit edit(sliced);
  std::map<std::pair<ValueId, Use>, ValueId> gathered;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const Use use{.forward = node.phase == Phase::kForward, .layer = node.layer};
    for (std::size_t operand = 0; operand < node.operands.size(); ++operand) {
      const auto parameter = whole.find(node.operands[operand]);
      if (parameter == whole.end()) {
        continue;
      }
      const auto [found, is_new] = gathered.try_emplace({parameter->first, use});
      if (is_new) {
        found->second = edit.fresh();
        edit.insert(NodeId::of(i),
                    {.op = make_op(GatherSlicesAttrs{.axes = to_string(axes),
                                                     .type = to_string(parameter->second)}),
                     .operands = {parameter->first},
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
