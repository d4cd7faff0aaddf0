#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph_edit.h"
#include "tessera/passes/pass.h"

namespace tessera {
namespace {

bool is_output(const Graph& graph, ValueId value) {
  return std::ranges::any_of(graph.outputs,
                             [&](const Output& output) { return output.value == value; });
}

// The product whose result `node` alone reads, to add a bias of several dims.
std::optional<NodeId> product_below(const Graph& graph,
                                    const std::vector<std::vector<NodeId>>& readers,
                                    const Node& node) {
  if (node.op->get_if<AddBiasAttrs>() == nullptr || graph[node.operands[1]].type.num_dims() < 2) {
    return std::nullopt;
  }
  const ValueId sum = node.operands[0];
  const NodeId producer = graph[sum].producer;
  if (!producer.valid() || readers[sum.at()].size() != 1 || is_output(graph, sum)) {
    return std::nullopt;
  }
  const Node& product = graph.nodes[producer.at()];
  const auto* attrs = product.op->get_if<MatmulAttrs>();
  const bool has_columns_of_bias =
      attrs != nullptr &&
      static_cast<std::int64_t>(graph[product.operands[1]].type.num_dims()) - attrs->contract ==
          static_cast<std::int64_t>(graph[node.operands[1]].type.num_dims());
  return has_columns_of_bias && product.phase == node.phase ? std::optional(producer)
                                                            : std::nullopt;
}

}  // namespace

Graph bias_products(const Graph& graph) {
  GraphEdit edit(graph);
  const auto readers = users(graph);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const std::optional<NodeId> found = product_below(graph, readers, node);
    if (!found) {
      continue;
    }
    const Node& product = graph.nodes[found->at()];
    MatmulAttrs attrs = *product.op->get_if<MatmulAttrs>();
    attrs.bias = true;
    edit.remove(*found);
    edit.remove(NodeId::of(i));
    edit.insert(NodeId::of(i),
                {.op = make_op(attrs),
                 .operands = {product.operands[0], product.operands[1], node.operands[1]},
                 .results = node.results,
                 .phase = node.phase,
                 .layer = node.layer});
  }
  return edit.apply();
}

}  // namespace tessera
