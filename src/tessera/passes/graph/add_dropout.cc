#include "tessera/passes/graph/add_dropout.h"

#include <cstdint>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"
#include "tessera/program/step_names.h"

namespace tessera {
namespace {

// The operand of a node that is dropped.
std::optional<std::size_t> dropped_operand(const Node& node) {
  const auto* product = node.op->get_if<BatchedProductAttrs>();
  if (product != nullptr && product->form == BatchedForm::kValues) {
    return 0;
  }
  const bool is_residual = node.op->get_if<AddAttrs>() != nullptr && node.layer >= 0;
  return is_residual ? std::optional<std::size_t>(1) : std::nullopt;
}

// Sequences of a microbatch.
Dim batch_of(const Graph& graph) {
  for (const ValueId input : graph.sources(ValueKind::kInput)) {
    if (!graph[input].type.dims.empty() && graph[input].type.dims[0].name == "batch") {
      return graph[input].type.dims[0];
    }
  }
  fail(ErrorCode::kInvalidArgument,
       "graph {} has no input with sequences (a first dim \"batch\"), expected one to drop from",
       graph.name);
}

}  // namespace

Graph add_dropout(const Graph& graph, double rate) {
  Graph with_sequences = graph;
  const ValueId sequences = with_sequences.add_input(
      step_names::kSequences, {.dtype = DType::kI32, .dims = {batch_of(graph)}});
  GraphEdit edit(with_sequences);
  std::int64_t seed = 0;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    TESSERA_REQUIRE(node.op->get_if<AttentionAttrs>() == nullptr,
                    ErrorCode::kUnsupported,
                    "node {} of graph {}: no dropout of the probabilities of attention that is one "
                    "op, expected attention = \"unfused\" or \"fused_softmax\"",
                    i,
                    graph.name);
    const std::optional<std::size_t> dropped = dropped_operand(node);
    if (!dropped) {
      continue;
    }
    const ValueId kept = edit.fresh();
    edit.insert(NodeId::of(i),
                {.op = make_op(DropoutAttrs{.rate = rate, .seed = seed++}),
                 .operands = {sequences, node.operands[*dropped]},
                 .results = {kept},
                 .phase = node.phase,
                 .layer = node.layer,
                 .chunk = node.chunk});
    edit.set_operand(NodeId::of(i), *dropped, kept);
  }
  return edit.apply();
}

}  // namespace tessera
