#include "tessera/passes/memory/concats.h"

#include <cstddef>

#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

const Op& producer_of(const Graph& graph, ValueId value) {
  return *graph.nodes[graph[value].producer.at()].op;
}

// Whether a result lies inside a concat as well as in a buffer of its own.
bool may_lie_inside(const Graph& graph, const ValueUses& uses, ValueId result) {
  const Op& producer = producer_of(graph, result);
  return info(producer).view == ViewKind::kNone && !is_product(producer) &&
         !uses.is_factor[result.at()];
}

// From the last node back, so that an op in place knows whether its result is a part.
std::vector<std::optional<ConcatPart>> find_parts(const Graph& graph, const ValueUses& uses) {
  std::vector<std::optional<ConcatPart>> part_of(graph.values.size());
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    if (const auto* concat = node.op->get_if<ConcatAttrs>(); concat != nullptr) {
      std::int64_t begin = 0;
      for (const ValueId operand : node.operands) {
        part_of[operand.at()] = {.whole = node.results[0], .dim = concat->dim, .begin = begin};
        begin += graph[operand].type.dims[static_cast<std::size_t>(concat->dim)].bound;
      }
      continue;
    }
    for (const Alias& alias : info(*node.op).aliases) {
      const ValueId operand = node.operands[static_cast<std::size_t>(alias.operand)];
      const ValueId result = node.results[static_cast<std::size_t>(alias.result)];
      if (part_of[result.at()] && !part_of[operand.at()] &&
          may_overwrite(graph, uses, NodeId::of(i), alias) &&
          may_lie_inside(graph, uses, operand)) {
        part_of[operand.at()] = part_of[result.at()];
        break;
      }
    }
  }
  // A state whose new content is a part lies where that is made.
  for (const Output& output : graph.outputs) {
    if (output.updates && part_of[output.value.at()] && !part_of[output.updates->at()]) {
      part_of[output.updates->at()] = part_of[output.value.at()];
    }
  }
  return part_of;
}

}  // namespace

Concats find_concats(const Graph& graph, const ValueUses& uses) {
  Concats concats{.part_of = find_parts(graph, uses), .results_of = {}};
  for (const Node& node : graph.nodes) {
    if (node.op->get_if<ConcatAttrs>() != nullptr) {
      concats.results_of[node.operands].push_back(node.results[0]);
    }
  }
  return concats;
}

}  // namespace tessera
