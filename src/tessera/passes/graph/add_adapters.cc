#include "tessera/passes/graph/add_adapters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"

namespace tessera {
namespace {

constexpr const char* kRankDim = "lora_rank";

// How a node multiplies by `weight` inside a layer; null where it does anything else.
const MatmulAttrs* product_with(const Node& node, ValueId weight) {
  const auto* attrs = node.op->get_if<MatmulAttrs>();
  const bool fits = attrs != nullptr && node.layer >= 0 && node.phase == Phase::kForward &&
                    !attrs->transpose_a && !attrs->accumulate && node.operands[1] == weight &&
                    node.operands[0] != weight;
  return fits ? attrs : nullptr;
}

// A product's weight has the dims of the outputs before those of the inputs, or behind them.
struct WeightDims {
  std::vector<Dim> inputs;
  std::vector<Dim> outputs;
};

WeightDims split_dims(const TensorType& weight, const MatmulAttrs& product) {
  const auto first = weight.dims.begin();
  const auto last = weight.dims.end();
  return product.transpose_b ? WeightDims{.inputs = {last - product.contract, last},
                                          .outputs = {first, last - product.contract}}
                             : WeightDims{.inputs = {first, first + product.contract},
                                          .outputs = {first + product.contract, last}};
}

std::int64_t num_elements(const std::vector<Dim>& dims) {
  return TensorType{.dtype = DType::kF32, .dims = dims}.num_elements();
}

// The two parameters of one adapter.
struct Adapter {
  ValueId a;
  ValueId b;
};

// Adds them as sources.
Adapter make_adapter(Graph& graph, ValueId weight, const MatmulAttrs& product, std::int64_t rank) {
  const std::string name = graph[weight].name;
  const DType dtype = graph[weight].type.dtype;
  WeightDims dims = split_dims(graph[weight].type, product);
  const double std = 1.0 / std::sqrt(3.0 * static_cast<double>(num_elements(dims.inputs)));
  const Dim rank_dim = {.name = kRankDim, .bound = rank};
  dims.inputs.insert(dims.inputs.begin(), rank_dim);
  dims.outputs.push_back(rank_dim);
  const ValueId a = graph.add_parameter(
      adapter_a(name), {.dtype = dtype, .dims = std::move(dims.inputs)}, {.std = std});
  const ValueId b =
      graph.add_parameter(adapter_b(name), {.dtype = dtype, .dims = std::move(dims.outputs)});
  return {.a = a, .b = b};
}

class Adapting {
 public:
  Adapting(const Graph& graph, const std::map<ValueId, Adapter>& adapters, double scale)
      : graph_(graph), edit_(graph), readers_(users(graph)), adapters_(adapters), scale_(scale) {}

  Graph run() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const NodeId id = NodeId::of(i);
      const auto adapter = adapter_of(id);
      if (adapter == adapters_.end()) {
        continue;
      }
      const ValueId input = edit_.node(id).operands[0];
      if (!base_.contains(id)) {
        multiply_first(input);
      }
      adapt(id, adapter->second);
    }
    return edit_.apply();
  }

 private:
  std::map<ValueId, Adapter>::const_iterator adapter_of(NodeId id) const {
    const Node& node = graph_.nodes[id.at()];
    return node.operands.size() < 2 || product_with(node, node.operands[1]) == nullptr
               ? adapters_.end()
               : adapters_.find(node.operands[1]);
  }

  // Puts all products of the input and parameters where the first of them is, before the adapters'.
  // So their gradients of the input are added before those of the adapters, without which they can
  // become one product, and are folded over ranks once.
  void multiply_first(ValueId input) {
    std::vector<NodeId> products;
    for (const NodeId reader : readers_[input.at()]) {
      const Node& node = edit_.node(reader);
      if (node.operands[0] == input && node.operands.size() == 2 &&
          graph_[node.operands[1]].kind == ValueKind::kParameter &&
          product_with(node, node.operands[1]) != nullptr) {
        products.push_back(reader);
      }
    }
    for (const NodeId product : products) {
      Node node = edit_.node(product);
      if (adapter_of(product) != adapters_.end()) {
        node.results[0] = edit_.fresh();
      }
      base_[product] = node.results[0];
      edit_.remove(product);
      edit_.insert(products.front(), std::move(node));
    }
  }

  // Puts the sum of a product and what the adapter makes of its input in the product's place.
  void adapt(NodeId position, const Adapter& adapter) {
    const Node& node = edit_.node(position);
    const MatmulAttrs product = *node.op->get_if<MatmulAttrs>();
    const auto emit = [&](OpRef op, std::vector<ValueId> operands, ValueId result) {
      edit_.insert(position,
                   {.op = std::move(op),
                    .operands = std::move(operands),
                    .results = {result},
                    .phase = node.phase,
                    .layer = node.layer});
      return result;
    };
    ValueId low =
        emit(make_op(MatmulAttrs{
                 .transpose_b = true, .contract = product.contract, .dtype = product.dtype}),
             {node.operands[0], adapter.a},
             edit_.fresh());
    if (scale_ != 1.0) {
      low = emit(make_op(MultiplyAttrs{.factor = scale_}), {low}, edit_.fresh());
    }
    const ValueId update = emit(make_op(MatmulAttrs{.transpose_b = true, .dtype = product.dtype}),
                                {low, adapter.b},
                                edit_.fresh());
    emit(make_op(AddAttrs{}), {base_.at(position), update}, node.results[0]);
  }

  const Graph& graph_;
  GraphEdit edit_;
  std::vector<std::vector<NodeId>> readers_;
  const std::map<ValueId, Adapter>& adapters_;
  double scale_;
  std::map<NodeId, ValueId> base_;  // what a product without its adapter makes
};

}  // namespace

std::vector<AdaptableWeight> adaptable_weights(const Graph& graph) {
  const std::vector<std::vector<NodeId>> readers = users(graph);
  std::vector<AdaptableWeight> weights;
  for (const ValueId id : graph.sources(ValueKind::kParameter)) {
    const MatmulAttrs* form = nullptr;
    const bool fits = std::ranges::all_of(readers[id.at()], [&](NodeId reader) {
      const MatmulAttrs* product = product_with(graph.nodes[reader.at()], id);
      const bool alike = product != nullptr && (form == nullptr || *form == *product);
      form = product;
      return alike;
    });
    if (!fits || form == nullptr) {
      continue;
    }
    const WeightDims dims = split_dims(graph[id].type, *form);
    weights.push_back({.id = id,
                       .name = graph[id].name,
                       .inputs = num_elements(dims.inputs),
                       .outputs = num_elements(dims.outputs),
                       .outputs_first = form->transpose_b});
  }
  return weights;
}

Graph add_adapters(const Graph& graph, const AdapterOptions& options) {
  const std::vector<AdaptableWeight> weights = adaptable_weights(graph);
  for (const std::string& target : options.targets) {
    TESSERA_REQUIRE(
        std::ranges::count(
            weights, target, [](const AdaptableWeight& w) { return target_name(w.name); }) > 0,
        ErrorCode::kInvalidArgument,
        "graph {} has no weight {} that an adapter could be added to",
        graph.name,
        target);
  }
  const std::vector<std::vector<NodeId>> readers = users(graph);
  Graph adapted = graph;
  for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
    adapted[parameter].frozen = true;
  }
  std::map<ValueId, Adapter> adapters;
  for (const AdaptableWeight& weight : weights) {
    if (std::ranges::count(options.targets, target_name(weight.name)) > 0) {
      const Node& product = graph.nodes[readers[weight.id.at()][0].at()];
      adapters[weight.id] =
          make_adapter(adapted, weight.id, *product.op->get_if<MatmulAttrs>(), options.rank);
    }
  }
  return Adapting(adapted, adapters, options.scale()).run();
}

}  // namespace tessera
