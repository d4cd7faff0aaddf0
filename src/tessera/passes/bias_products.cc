#include <cstdint>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/fusion.h"
#include "tessera/passes/pass.h"

namespace tessera {
namespace {

// y = add_bias(matmul(x, w), b), b of several dims  ->  y = matmul{bias}(x, w, b)
void bias_into_product(Fusion& fusion, NodeId id) {
  if (fusion.op<AddBiasAttrs>(id) == nullptr) {
    return;
  }
  const Graph& graph = fusion.graph();
  const Node& node = fusion.node(id);
  const auto num_dims = static_cast<std::int64_t>(graph[node.operands[1]].type.num_dims());
  const NodeId producer = graph[node.operands[0]].producer;
  if (num_dims < 2 || !producer.valid() || !fusion.only_reader(node.operands[0])) {
    return;
  }
  const Node& product = fusion.node(producer);
  const auto* found = fusion.op<MatmulAttrs>(producer);
  if (found == nullptr || product.phase != node.phase ||
      static_cast<std::int64_t>(graph[product.operands[1]].type.num_dims()) - found->contract !=
          num_dims) {
    return;
  }
  MatmulAttrs attrs = *found;
  attrs.bias = true;
  fusion.replace({producer, id},
                 id,
                 {.op = make_op(attrs),
                  .operands = {product.operands[0], product.operands[1], node.operands[1]},
                  .results = node.results,
                  .phase = node.phase,
                  .layer = node.layer});
}

}  // namespace

Graph bias_products(const Graph& graph) {
  return apply_to_all(graph, bias_into_product);
}

}  // namespace tessera
