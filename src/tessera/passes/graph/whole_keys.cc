#include "tessera/passes/graph/whole_keys.h"

#include <cstddef>
#include <optional>

#include "tessera/ops/all_ops.h"
#include "tessera/program/step_names.h"

namespace tessera {
namespace {

// The first of the four operands that say where queries and keys stand.
std::optional<std::size_t> first_id(const Op& op) {
  if (op.get_if<AttentionAttrs>() != nullptr) {
    return 3;
  }
  const auto* softmax = op.get_if<ScaleMaskSoftmaxAttrs>();
  const bool is_masked =
      op.get_if<MaskScoresAttrs>() != nullptr || (softmax != nullptr && softmax->masked);
  return is_masked ? std::optional<std::size_t>(1) : std::nullopt;
}

// The positions and documents of all keys.
struct KeyIds {
  ValueId positions;
  ValueId documents;
};

}  // namespace

Graph whole_keys(Graph graph) {
  std::optional<KeyIds> keys;
  for (Node& node : graph.nodes) {
    const std::optional<std::size_t> ids = first_id(*node.op);
    if (!ids) {
      continue;
    }
    ValueId& positions = node.operands[*ids + 1];
    ValueId& documents = node.operands[*ids + 3];
    if (!keys) {
      TensorType type = graph[positions].type;
      type.dims[1].name = "keys";
      keys = {.positions = graph.add_input(step_names::kKeyPositions, type),
              .documents = graph.add_input(step_names::kKeyDocuments, type)};
    }
    positions = keys->positions;
    documents = keys->documents;
    if (const auto* attrs = node.op->get_if<AttentionAttrs>();
        attrs != nullptr && attrs->by_heads) {
      node.operands[*ids] = keys->positions;
      node.operands[*ids + 2] = keys->documents;
    }
  }
  return graph;
}

}  // namespace tessera
