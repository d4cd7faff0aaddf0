#include "tessera/passes/graph/join_accumulation.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/fusion.h"

namespace tessera {
namespace {

// The op that adds its only result to an accumulator, for the ops that can.
std::optional<OpRef> accumulating(const Op& op) {
  const auto with = [](auto attrs) -> std::optional<OpRef> {
    if (attrs.accumulate) {
      return std::nullopt;
    }
    attrs.accumulate = true;
    return make_op(attrs);
  };
  if (const auto* matmul = op.get_if<MatmulAttrs>(); matmul != nullptr) {
    return matmul->dtype == DType::kF32 ? with(*matmul) : std::nullopt;
  }
  if (const auto* matmul = op.get_if<ScaledMatmulAttrs>(); matmul != nullptr) {
    return matmul->dtype == DType::kF32 ? with(*matmul) : std::nullopt;
  }
  if (const auto* embedding = op.get_if<EmbeddingBackwardAttrs>(); embedding != nullptr) {
    return with(*embedding);
  }
  return std::nullopt;
}

// total = add(state, gradient)  ->  total comes from the op that made the gradient
void accumulation_into_producer(Fusion& fusion, NodeId id) {
  if (fusion.op<AddAttrs>(id) == nullptr) {
    return;
  }
  const Node& addition = fusion.node(id);
  const Graph& graph = fusion.graph();
  const ValueId gradient = addition.operands[1];
  const NodeId producer = graph[gradient].producer;
  if (graph[addition.operands[0]].kind != ValueKind::kGradient || !producer.valid() ||
      fusion.taken(producer) || fusion.only_reader(gradient) != std::optional(id)) {
    return;
  }
  const Node& node = fusion.node(producer);
  const auto op = accumulating(*node.op);
  if (!op) {
    return;
  }
  std::vector<ValueId> operands = node.operands;
  operands.push_back(addition.operands[0]);
  fusion.replace({producer, id},
                 producer,
                 {.op = *op,
                  .operands = std::move(operands),
                  .results = {addition.results[0]},
                  .phase = node.phase,
                  .layer = node.layer,
                  .chunk = node.chunk});
}

// One part of a grouped weight gradient: slice and addition to its state.
struct AccumulatedPart {
  NodeId slice;
  NodeId addition;
};

// The slices that read `whole`, in the order in which they lie in it, or none unless nothing else
// reads it and they are all of it, each once.
std::vector<NodeId> slices_of_all(const Fusion& fusion, ValueId whole) {
  if (fusion.is_output(whole)) {
    return {};
  }
  std::vector<NodeId> slices;
  for (const NodeId reader : fusion.readers(whole)) {
    const auto* attrs = fusion.op<SliceAttrs>(reader);
    if (attrs == nullptr || attrs->dim != 0) {
      return {};
    }
    slices.push_back(reader);
  }
  std::ranges::sort(slices, {}, [&](NodeId slice) { return fusion.op<SliceAttrs>(slice)->begin; });
  std::int64_t end = 0;
  for (const NodeId slice : slices) {
    const auto* attrs = fusion.op<SliceAttrs>(slice);
    if (attrs->begin != end) {
      return {};
    }
    end += attrs->size;
  }
  return end == fusion.graph()[whole].type.dims[0].bound ? slices : std::vector<NodeId>();
}

// The parts of `whole`, or none unless slices that are only added to a state are all of it.
std::vector<AccumulatedPart> accumulated_parts(const Fusion& fusion, ValueId whole) {
  std::vector<AccumulatedPart> parts;
  for (const NodeId slice : slices_of_all(fusion, whole)) {
    const auto reader = fusion.only_reader(fusion.node(slice).results[0]);
    if (!reader || fusion.op<AddAttrs>(*reader) == nullptr ||
        fusion.graph()[fusion.node(*reader).operands[0]].kind != ValueKind::kGradient) {
      return {};
    }
    parts.push_back({.slice = slice, .addition = *reader});
  }
  return parts;
}

// The same for grouped products: the states become one accumulator, in adjacent memory.
void accumulation_into_group(Fusion& fusion, NodeId id) {
  const auto* matmul = fusion.op<MatmulAttrs>(id);
  if (matmul == nullptr) {
    return;
  }
  const auto op = accumulating(*fusion.node(id).op);
  const Node& node = fusion.node(id);
  const auto parts = accumulated_parts(fusion, node.results[0]);
  if (!op || parts.empty()) {
    return;
  }
  const auto insert = [&](OpRef joint, std::vector<ValueId> operands, ValueId result) {
    fusion.replace({},
                   id,
                   {.op = std::move(joint),
                    .operands = std::move(operands),
                    .results = {result},
                    .phase = node.phase,
                    .layer = node.layer,
                    .chunk = node.chunk});
  };
  std::vector<ValueId> states;
  std::vector<NodeId> removed = {id};
  for (const AccumulatedPart& part : parts) {
    states.push_back(fusion.node(part.addition).operands[0]);
    removed.insert(removed.end(), {part.slice, part.addition});
  }
  const ValueId accumulator = fusion.fresh();
  const ValueId total = fusion.fresh();
  const ConcatAttrs joined{.num_operands = static_cast<std::int64_t>(states.size()),
                           .dim = 0,
                           .name = fusion.graph()[node.results[0]].type.dims[0].name};
  insert(make_op(joined), states, accumulator);
  insert(*op, {node.operands[0], node.operands[1], accumulator}, total);
  for (const AccumulatedPart& part : parts) {
    insert(fusion.node(part.slice).op, {total}, fusion.node(part.addition).results[0]);
  }
  fusion.remove(removed);
}

// What `node` adds to, once a microbatch.
std::optional<ValueId> accumulator_of(const Graph& graph, const Node& node) {
  if (node.phase == Phase::kUpdate) {
    return std::nullopt;
  }
  if (node.op->get_if<AddAttrs>() != nullptr) {
    const bool adds = graph[node.operands[0]].kind == ValueKind::kGradient;
    return adds ? std::optional(node.operands[0]) : std::nullopt;
  }
  const auto last_if = [&](const auto* attrs) {
    return attrs != nullptr && attrs->accumulate ? std::optional(node.operands.back())
                                                 : std::nullopt;
  };
  for (const auto& found : {last_if(node.op->get_if<MatmulAttrs>()),
                            last_if(node.op->get_if<ScaledMatmulAttrs>()),
                            last_if(node.op->get_if<EmbeddingBackwardAttrs>()),
                            last_if(node.op->get_if<CrossEntropyAttrs>())}) {
    if (found) {
      return found;
    }
  }
  return std::nullopt;
}

// The accumulators that `accumulator` is made of.
std::vector<ValueId> parts_of(const Graph& graph, ValueId accumulator) {
  const NodeId producer = graph[accumulator].producer;
  const bool is_joint =
      producer.valid() && graph.nodes[producer.at()].op->get_if<ConcatAttrs>() != nullptr;
  return is_joint ? graph.nodes[producer.at()].operands : std::vector{accumulator};
}

}  // namespace

Graph join_accumulation(Graph graph) {
  return apply_to_all(apply_to_all(std::move(graph), accumulation_into_producer),
                      accumulation_into_group);
}

Graph start_accumulators(Graph graph) {
  std::set<ValueId> started;
  for (Node& node : graph.nodes) {
    const std::optional<ValueId> accumulator = accumulator_of(graph, node);
    if (!accumulator) {
      continue;
    }
    const std::vector<ValueId> parts = parts_of(graph, *accumulator);
    const auto num_started =
        std::ranges::count_if(parts, [&](ValueId part) { return started.contains(part); });
    TESSERA_CHECK(num_started == 0 || num_started == std::ssize(parts),
                  "{} adds to {} accumulators, of which {} have been written before",
                  to_string(*node.op),
                  parts.size(),
                  num_started);
    started.insert(parts.begin(), parts.end());
    if (num_started > 0) {
      continue;
    }
    const auto drop_last = [&](auto attrs) {
      attrs.accumulate = false;
      node.op = make_op(attrs);
      node.operands.pop_back();
    };
    if (const auto* matmul = node.op->get_if<MatmulAttrs>(); matmul != nullptr) {
      drop_last(*matmul);
    } else if (const auto* scaled = node.op->get_if<ScaledMatmulAttrs>(); scaled != nullptr) {
      drop_last(*scaled);
    } else if (const auto* embedding = node.op->get_if<EmbeddingBackwardAttrs>();
               embedding != nullptr) {
      drop_last(*embedding);
    } else if (const auto* loss = node.op->get_if<CrossEntropyAttrs>(); loss != nullptr) {
      drop_last(*loss);
    } else {
      node.op = make_op(CastAttrs{.dtype = DType::kF32});
      node.operands.erase(node.operands.begin());
    }
  }
  verify(graph);
  return graph;
}

}  // namespace tessera
