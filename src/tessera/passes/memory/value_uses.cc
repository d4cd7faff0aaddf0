#include "tessera/passes/memory/value_uses.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

constexpr NodeId kAfterAllNodes = {1 << 30};

// Whether the content of an accumulator has served once the update has added it to another's, which
// node `last` does: a step's first microbatch writes it anew.
bool is_summed(const Graph& graph, const Output& output, NodeId last) {
  if (!output.updates || graph[*output.updates].kind != ValueKind::kGradient || !last.valid() ||
      last.at() >= graph.nodes.size()) {
    return false;
  }
  const Node& node = graph.nodes[last.at()];
  return node.phase == Phase::kUpdate && node.op->get_if<AddAttrs>() != nullptr;
}

// What a step makes once is there for every microbatch.
bool is_read_again(const Graph& graph, ValueId value, const Node& reader) {
  const NodeId producer = graph[value].producer;
  return producer.valid() && graph.nodes[producer.at()].phase == Phase::kStart &&
         reader.phase != Phase::kStart;
}

std::vector<NodeId> find_last_uses(const Graph& graph) {
  std::vector<NodeId> last(graph.values.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const ValueId operand : graph.nodes[i].operands) {
      NodeId& of_operand = last[operand.at()];
      of_operand = is_read_again(graph, operand, graph.nodes[i])
                       ? kAfterAllNodes
                       : std::max(of_operand, NodeId::of(i));
    }
  }
  for (const Output& output : graph.outputs) {
    NodeId& of_output = last[output.value.at()];
    of_output = is_summed(graph, output, of_output) ? of_output : kAfterAllNodes;
  }
  return last;
}

// From the last node back: of what a product reads by a view, too.
std::vector<bool> find_factors(const Graph& graph) {
  std::vector<bool> is_factor(graph.values.size(), false);
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    const bool reads_factors = is_product(*node.op) || (info(*node.op).view != ViewKind::kNone &&
                                                        is_factor[node.results[0].at()]);
    for (const ValueId operand : node.operands) {
      is_factor[operand.at()] = is_factor[operand.at()] || reads_factors;
    }
  }
  return is_factor;
}

// Whether the node allows result `r` over `operand` wherever it reads that.
bool may_lie_over(const Node& node, std::int32_t r, ValueId operand) {
  const std::vector<Alias> aliases = info(*node.op).aliases;
  for (std::size_t o = 0; o < node.operands.size(); ++o) {
    if (node.operands[o] == operand &&
        std::none_of(aliases.begin(), aliases.end(), [&](const Alias& alias) {
          return alias.result == r && alias.operand == static_cast<std::int32_t>(o);
        })) {
      return false;
    }
  }
  return true;
}

bool same_memory_shape(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype &&
         std::equal(
             a.dims.begin(), a.dims.end(), b.dims.begin(), b.dims.end(), [](auto& m, auto& n) {
               return m.bound == n.bound;
             });
}

}  // namespace

ValueUses find_uses(const Graph& graph) {
  ValueUses uses{.last = find_last_uses(graph),
                 .is_factor = find_factors(graph),
                 .updates = std::vector<std::optional<ValueId>>(graph.values.size())};
  for (const Output& output : graph.outputs) {
    if (output.updates) {
      uses.updates[output.value.at()] = *output.updates;
    }
  }
  return uses;
}

bool is_product(const Op& op) {
  return op.get_if<MatmulAttrs>() != nullptr || op.get_if<ScaledMatmulAttrs>() != nullptr ||
         op.get_if<CrossEntropyAttrs>() != nullptr;
}

bool may_overwrite(const Graph& graph, const ValueUses& uses, NodeId id, const Alias& alias) {
  const Node& node = graph.nodes[id.at()];
  const ValueId operand = node.operands[static_cast<std::size_t>(alias.operand)];
  const ValueId result = node.results[static_cast<std::size_t>(alias.result)];
  return graph[operand].kind == ValueKind::kResult && uses.last[operand.at()] <= id &&
         same_memory_shape(graph[operand].type, graph[result].type) &&
         may_lie_over(node, alias.result, operand);
}

}  // namespace tessera
