#include "tessera/passes/graph/cache_attention.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"
#include "tessera/program/step_names.h"

namespace tessera {
namespace {

// The operands of an attention node that change, by their places.
constexpr std::size_t kQuery = 0;
constexpr std::size_t kKeys = 1;
constexpr std::size_t kValues = 2;
constexpr std::size_t kKeyPositions = 4;
constexpr std::size_t kKeyDocuments = 6;

std::vector<NodeId> attention_nodes(const Graph& graph) {
  std::vector<NodeId> found;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    TESSERA_REQUIRE(node.op->get_if<BatchedProductAttrs>() == nullptr,
                    ErrorCode::kUnsupported,
                    "node {} of graph {} cannot go on from cached keys: found attention of batched "
                    "products (model.alibi), expected one that is an op of its own",
                    i,
                    graph.name);
    if (const auto* attrs = node.op->get_if<AttentionAttrs>(); attrs != nullptr) {
      TESSERA_REQUIRE(attrs->causal && node.phase == Phase::kForward,
                      ErrorCode::kInvalidArgument,
                      "node {} of graph {} cannot go on from cached keys: expected causal "
                      "attention of a forward graph",
                      i,
                      graph.name);
      found.push_back(NodeId::of(i));
    }
  }
  return found;
}

// What one operand of an attention node becomes: a cache, and the node that writes to it.
struct Cached {
  NodeId reader;
  std::size_t operand;
  ValueId cache;
};

}  // namespace

Graph cache_attention(const Graph& graph, std::int64_t length) {
  const std::vector<NodeId> nodes = attention_nodes(graph);
  if (nodes.empty()) {
    return graph;
  }
  const TensorType& query = graph[graph.nodes[nodes[0].at()].operands[kQuery]].type;
  const Dim keys{.name = "keys", .bound = length};
  const auto ids = [&](const Dim& dim) {
    return TensorType{.dtype = DType::kI32, .dims = {query.dims[0], dim}};
  };
  Graph with_caches = graph;
  const ValueId slots = with_caches.add_input("slots", ids(query.dims[1]));
  const ValueId positions = with_caches.add_input(step_names::kKeyPositions, ids(keys));
  const ValueId documents = with_caches.add_input(step_names::kKeyDocuments, ids(keys));
  std::vector<Cached> caches;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const auto& [operand, name] : {std::pair{kKeys, "keys"}, {kValues, "values"}}) {
      TensorType type = graph[graph.nodes[nodes[i].at()].operands[operand]].type;
      type.dims[1] = keys;
      caches.push_back(
          {.reader = nodes[i],
           .operand = operand,
           .cache = with_caches.add_state(
               {.role = StateRole::kCache}, format("{}.{}", name, i), std::move(type))});
    }
  }
  GraphEdit edit(with_caches);
  std::vector<Output> outputs = graph.outputs;
  for (const Cached& cached : caches) {
    const Node& reader = edit.node(cached.reader);
    const ValueId content = edit.fresh();
    edit.insert(cached.reader,
                {.op = make_op(WriteRowsAttrs{}),
                 .operands = {cached.cache, reader.operands[cached.operand], slots},
                 .results = {content},
                 .phase = reader.phase,
                 .layer = reader.layer});
    edit.set_operand(cached.reader, cached.operand, content);
    outputs.push_back(
        {.name = with_caches[cached.cache].name, .value = content, .updates = cached.cache});
  }
  for (const NodeId node : nodes) {
    edit.set_operand(node, kKeyPositions, positions);
    edit.set_operand(node, kKeyDocuments, documents);
  }
  edit.set_outputs(std::move(outputs));
  return edit.apply();
}

}  // namespace tessera
