#include "tessera/passes/ranks/gather_ahead.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"

namespace tessera {
namespace {

// How an update makes a parameter.
struct UpdatedParameter {
  const Node& gather;
  const Node* cast = nullptr;  // of the master's slice, before the gather; null: none
  ValueId master;              // as the step finds it
};

const Node* producer_of(const Graph& graph, ValueId value) {
  const NodeId producer = graph[value].producer;
  return producer.valid() ? &graph.nodes[producer.at()] : nullptr;
}

bool goes_to_another_rank(const Graph& graph, const std::vector<NodeId>& readers) {
  return std::ranges::any_of(readers, [&](NodeId reader) {
    return graph.nodes[reader.at()].op->get_if<SendAttrs>() != nullptr;
  });
}

// Whether the update gathers the parameter in full, and nothing else from it.
bool is_gathered(const Graph& graph, ValueId state, const Node* gather) {
  const auto* attrs = gather == nullptr ? nullptr : gather->op->get_if<GatherSlicesAttrs>();
  return attrs != nullptr && attrs->wire.empty() && graph[state].kind == ValueKind::kParameter &&
         !graph.find_state(graph[state].name, StateRole::kSecondary).valid();
}

// None where the update does not gather it, or not it alone.
std::optional<UpdatedParameter> updated_parameter(const Graph& graph, const Output& output) {
  const Node* const gather = producer_of(graph, output.value);
  if (!output.updates || !is_gathered(graph, *output.updates, gather)) {
    return std::nullopt;
  }
  const Node* cast = producer_of(graph, gather->operands[0]);
  cast = cast != nullptr && cast->op->get_if<CastAttrs>() != nullptr ? cast : nullptr;
  const ValueId updated = (cast == nullptr ? gather : cast)->operands[0];
  const auto of_master = std::ranges::find(graph.outputs, updated, &Output::value);
  if (of_master == graph.outputs.end() || !of_master->updates) {
    return std::nullopt;
  }
  return UpdatedParameter{.gather = *gather, .cast = cast, .master = *of_master->updates};
}

}  // namespace

Graph gather_ahead(const Graph& graph) {
  GraphEdit edit(graph);
  const std::vector<std::vector<NodeId>> readers = users(graph);
  std::vector<Output> outputs = graph.outputs;
  for (Output& output : outputs) {
    const auto found = updated_parameter(graph, output);
    if (!found || readers[output.updates->at()].empty() ||
        goes_to_another_rank(graph, readers[output.updates->at()])) {
      continue;
    }
    const ValueId parameter = *output.updates;
    const Node& first = graph.nodes[readers[parameter.at()].front().at()];
    ValueId value = found->master;
    const auto emit = [&](const OpRef& op) {
      const ValueId result = edit.fresh();
      edit.insert(NodeId::of(0),
                  {.op = op,
                   .operands = {value},
                   .results = {result},
                   .phase = Phase::kStart,
                   .layer = first.layer,
                   .chunk = first.chunk});
      value = result;
    };
    if (found->cast != nullptr) {
      emit(found->cast->op);
    }
    emit(found->gather.op);
    output.value = value;
    for (const NodeId reader : readers[parameter.at()]) {
      const std::vector<ValueId>& operands = graph.nodes[reader.at()].operands;
      for (std::size_t i = 0; i < operands.size(); ++i) {
        if (operands[i] == parameter) {
          edit.set_operand(reader, i, value);
        }
      }
    }
  }
  edit.set_outputs(std::move(outputs));
  return edit.apply();
}

}  // namespace tessera
