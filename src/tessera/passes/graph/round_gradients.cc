#include "tessera/passes/graph/round_gradients.h"

#include "tessera/ops/all_ops.h"

namespace tessera {

Graph round_gradients(Graph graph) {
  for (const Output& output : graph.outputs) {
    if (output.kind != OutputKind::kGradient) {
      continue;
    }
    ValueInfo& gradient = graph[output.value];
    Node& made_by = graph.nodes[gradient.producer.at()];
    const auto* attrs = made_by.op->get_if<MatmulAttrs>();
    if (attrs == nullptr || graph[made_by.operands[0]].type.dtype != DType::kBF16) {
      continue;
    }
    MatmulAttrs rounded = *attrs;
    rounded.dtype = DType::kBF16;
    made_by.op = make_op(rounded);
    gradient.type.dtype = DType::kBF16;
  }
  return graph;
}

}  // namespace tessera
