#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph_edit.h"
#include "tessera/passes/pass.h"

namespace tessera {
namespace {

// Each fusion looks at one node at a time and joins it with others; a node is taken once per pass.
class Fusion {
 public:
  explicit Fusion(const Graph& graph)
      : graph_(graph), edit_(graph), users_(users(graph)), is_output_(graph.values.size(), false) {
    for (const Output& output : graph.outputs) {
      is_output_[output.value.at()] = true;
    }
  }

  const Graph& graph() const { return graph_; }

  const Node& node(NodeId id) const { return graph_.nodes[id.at()]; }

  bool taken(NodeId id) const { return edit_.removed(id); }

  const std::vector<NodeId>& readers(ValueId value) const { return users_[value.at()]; }

  bool is_output(ValueId value) const { return is_output_[value.at()]; }

  // The only reader of `value`, if there is one and the value is no output.
  std::optional<NodeId> only_reader(ValueId value) const {
    const auto& list = readers(value);
    return list.size() == 1 && !is_output(value) ? std::optional(list[0]) : std::nullopt;
  }

  bool read_before(ValueId value, NodeId position) const {
    return !readers(value).empty() && readers(value).front() < position;
  }

  template <class A>
  const A* op(NodeId id) const {
    return taken(id) ? nullptr : node(id).op->get_if<A>();
  }

  void remove(const std::vector<NodeId>& parts) {
    for (const NodeId part : parts) {
      edit_.remove(part);
    }
  }

  void replace(const std::vector<NodeId>& parts, NodeId position, Node whole) {
    remove(parts);
    edit_.insert(position, std::move(whole));
  }

  ValueId fresh() { return edit_.fresh(); }

  Graph apply() const { return edit_.apply(); }

 private:
  const Graph& graph_;
  GraphEdit edit_;
  std::vector<std::vector<NodeId>> users_;
  std::vector<bool> is_output_;
};

// h = add(x, r); n = norm(h)  ->  n, h = norm{residual}(x, r)
template <class Attrs>
void add_into_norm(Fusion& fusion, NodeId id) {
  const auto* norm = fusion.op<Attrs>(id);
  if (norm == nullptr || norm->residual) {
    return;
  }
  const Node& node = fusion.node(id);
  const NodeId producer = fusion.graph()[node.operands[0]].producer;
  if (!producer.valid() || fusion.op<AddAttrs>(producer) == nullptr) {
    return;
  }
  const Node& addition = fusion.node(producer);
  const ValueId sum = addition.results[0];
  if (addition.phase != node.phase || fusion.readers(sum).front() != id) {
    return;
  }
  Attrs attrs = *norm;
  attrs.residual = true;
  std::vector<ValueId> operands = addition.operands;
  operands.insert(operands.end(), node.operands.begin() + 1, node.operands.end());
  std::vector<ValueId> results = node.results;
  results.push_back(sum);
  fusion.replace({producer, id},
                 id,
                 {.op = make_op(attrs),
                  .operands = std::move(operands),
                  .results = std::move(results),
                  .phase = node.phase,
                  .layer = node.layer});
}

// The node that adds a vector to the rows of what makes `value`, if that is all it is.
const Node* biased_rows(const Fusion& fusion, ValueId value) {
  const NodeId producer = fusion.graph()[value].producer;
  if (!producer.valid() || fusion.op<AddBiasAttrs>(producer) == nullptr) {
    return nullptr;
  }
  const Node& node = fusion.node(producer);
  return fusion.graph()[node.operands[1]].type.num_dims() == 1 ? &node : nullptr;
}

// r = add_bias(y, b); n, h = layer_norm{residual}(x, r)  ->  layer_norm{residual, biased}(x, y, b)
void bias_into_layer_norm(Fusion& fusion, NodeId id) {
  const auto* norm = fusion.op<LayerNormAttrs>(id);
  if (norm == nullptr || !norm->residual || norm->biased) {
    return;
  }
  const Node& node = fusion.node(id);
  for (const std::size_t branch : {1, 0}) {
    const ValueId added = node.operands[branch];
    const Node* const biased = biased_rows(fusion, added);
    if (biased == nullptr || biased->phase != node.phase ||
        fusion.only_reader(added) != std::optional(id)) {
      continue;
    }
    LayerNormAttrs attrs = *norm;
    attrs.biased = true;
    std::vector<ValueId> operands = {
        node.operands[1 - branch], biased->operands[0], biased->operands[1]};
    operands.insert(operands.end(), node.operands.begin() + 2, node.operands.end());
    fusion.replace({fusion.graph()[added].producer, id},
                   id,
                   {.op = make_op(attrs),
                    .operands = std::move(operands),
                    .results = node.results,
                    .phase = node.phase,
                    .layer = node.layer});
    return;
  }
}

// The op that adds a vector to the rows of its last operand, for the ops that can.
std::optional<OpRef> with_bias(const Op& op) {
  if (op.get_if<GeluAttrs>() != nullptr) {
    return make_op(GeluAttrs{.bias = true});
  }
  if (op.get_if<GeluBackwardAttrs>() != nullptr) {
    return make_op(GeluBackwardAttrs{.bias = true});
  }
  return std::nullopt;
}

// u = add_bias(x, b); y = gelu(u); gelu_backward(dy, u)  ->  gelu{bias}(x, b), gelu_backward{bias}(
// dy, x, b). Not where that would keep what was gathered for forward.
void bias_into_gelu(Fusion& fusion, NodeId id) {
  if (fusion.taken(id)) {
    return;
  }
  const Node& node = fusion.node(id);
  const ValueId sum = node.results[0];
  const std::vector<NodeId>& readers = fusion.readers(sum);
  if (biased_rows(fusion, sum) != &node || fusion.is_output(sum) || readers.empty()) {
    return;
  }
  const bool is_gathered = fusion.graph()[node.operands[1]].producer.valid();
  for (const NodeId reader : readers) {
    const Node& other = fusion.node(reader);
    if (fusion.taken(reader) || !with_bias(*other.op) || other.operands.back() != sum ||
        (is_gathered && other.phase != node.phase)) {
      return;
    }
  }
  fusion.remove({id});
  for (const NodeId reader : readers) {
    const Node& other = fusion.node(reader);
    std::vector<ValueId> operands(other.operands.begin(), other.operands.end() - 1);
    operands.insert(operands.end(), node.operands.begin(), node.operands.end());
    fusion.replace({reader},
                   reader,
                   {.op = *with_bias(*other.op),
                    .operands = std::move(operands),
                    .results = other.results,
                    .phase = other.phase,
                    .layer = other.layer});
  }
}

// dx = norm_backward(dy, x, g, ..); dg.. = norm_weight_gradient(dy, x, ..)  ->  all in one pass
// over dy, x
template <class Attrs, class WeightAttrs>
void weight_gradient_into_backward(Fusion& fusion, NodeId id) {
  if (fusion.op<WeightAttrs>(id) == nullptr) {
    return;
  }
  const Node& node = fusion.node(id);
  for (const NodeId other : fusion.readers(node.operands[0])) {
    const auto* attrs = fusion.op<Attrs>(other);
    if (attrs == nullptr || attrs->weight_gradient) {
      continue;
    }
    const Node& main = fusion.node(other);
    std::vector<ValueId> shared = main.operands;
    shared.erase(shared.begin() + 2);  // g
    if (shared != node.operands || other > id || fusion.read_before(main.results[0], id)) {
      continue;
    }
    Attrs both = *attrs;
    both.weight_gradient = true;
    std::vector<ValueId> results = main.results;
    results.insert(results.end(), node.results.begin(), node.results.end());
    fusion.replace({other, id},
                   other,
                   {.op = make_op(both),
                    .operands = main.operands,
                    .results = std::move(results),
                    .phase = main.phase,
                    .layer = main.layer});
    return;
  }
}

// s = add(rms_norm_backward(...), r)  ->  s = rms_norm_backward{residual}(..., r)
template <class Attrs>
void residual_into_norm_backward(Fusion& fusion, NodeId id) {
  const Attrs* attrs = fusion.op<Attrs>(id);
  if (attrs == nullptr || attrs->residual) {
    return;
  }
  const Node& node = fusion.node(id);
  const auto reader = fusion.only_reader(node.results[0]);
  if (!reader || fusion.op<AddAttrs>(*reader) == nullptr) {
    return;
  }
  const Node& addition = fusion.node(*reader);
  const ValueId other = addition.operands[addition.operands[0] == node.results[0] ? 1 : 0];
  if (!(fusion.graph()[other].producer < id)) {
    return;
  }
  Attrs joint = *attrs;
  joint.residual = true;
  std::vector<ValueId> operands = node.operands;
  operands.push_back(other);
  std::vector<ValueId> results = node.results;
  results[0] = addition.results[0];
  fusion.replace({id, *reader},
                 id,
                 {.op = make_op(joint),
                  .operands = std::move(operands),
                  .results = std::move(results),
                  .phase = node.phase,
                  .layer = node.layer});
}

// The nodes behind `first` that make `values`, in order: a gather, say, that was put before its
// reader. None where one of them needs what `first` makes.
std::optional<std::set<NodeId>> makers_behind(const Fusion& fusion,
                                              NodeId first,
                                              std::span<const ValueId> values) {
  std::set<NodeId> makers;
  for (const ValueId value : values) {
    const NodeId producer = fusion.graph()[value].producer;
    if (producer == first || (producer.valid() && fusion.taken(producer))) {
      return std::nullopt;
    }
    if (!producer.valid() || producer < first || !makers.insert(producer).second) {
      continue;
    }
    auto before = makers_behind(fusion, first, fusion.node(producer).operands);
    if (!before) {
      return std::nullopt;
    }
    makers.merge(*before);
  }
  return makers;
}

// loss = cross_entropy(...); dx, dhead = cross_entropy{gradients}(...)  ->  all three from one pass
void loss_with_gradients(Fusion& fusion, NodeId id) {
  const auto* loss = fusion.op<CrossEntropyAttrs>(id);
  if (loss == nullptr || !loss->loss || loss->gradients) {
    return;
  }
  const Node& node = fusion.node(id);
  for (const NodeId other : fusion.readers(node.operands[2])) {  // the labels
    const auto* attrs = fusion.op<CrossEntropyAttrs>(other);
    if (attrs == nullptr || attrs->loss) {
      continue;
    }
    const Node& gradients = fusion.node(other);
    if (!std::equal(node.operands.begin(),
                    node.operands.end(),
                    gradients.operands.begin(),
                    [&](ValueId a, ValueId b) { return same_content(fusion.graph(), a, b); })) {
      continue;
    }
    const std::span more = std::span(gradients.operands).subspan(node.operands.size());
    const auto makers = makers_behind(fusion, id, more);
    if (!makers) {
      continue;
    }
    for (const NodeId maker : *makers) {
      Node earlier = fusion.node(maker);
      earlier.phase = node.phase;
      fusion.replace({maker}, id, std::move(earlier));
    }
    CrossEntropyAttrs joint = *attrs;
    joint.loss = true;
    std::vector<ValueId> operands = node.operands;
    operands.insert(operands.end(), more.begin(), more.end());
    std::vector<ValueId> results = gradients.results;
    results.insert(results.begin(), node.results[0]);
    fusion.replace({id, other},
                   id,
                   {.op = make_op(joint),
                    .operands = std::move(operands),
                    .results = std::move(results),
                    .phase = node.phase,
                    .layer = node.layer});
    return;
  }
}

// c = quantize_float8(..); t = transpose_codes(c)  ->  c, t from one pass; t alone where nothing
// else reads c
void transposition_into_quantize(Fusion& fusion, NodeId id) {
  const auto* attrs = fusion.op<TransposeCodesAttrs>(id);
  if (attrs == nullptr) {
    return;
  }
  const Node& node = fusion.node(id);
  const NodeId producer = fusion.graph()[node.operands[0]].producer;
  const auto* quantize = producer.valid() ? fusion.op<QuantizeFloat8Attrs>(producer) : nullptr;
  if (quantize == nullptr || quantize->transposed || fusion.node(producer).phase != node.phase) {
    return;
  }
  const Node& main = fusion.node(producer);
  QuantizeFloat8Attrs joint = *quantize;
  joint.codes = fusion.only_reader(main.results[0]) != std::optional(id);
  joint.transposed = true;
  joint.rows = attrs->rows;
  std::vector<ValueId> results = {node.results[0], main.results[1]};
  if (joint.codes) {
    results.insert(results.begin(), main.results[0]);
  }
  fusion.replace({producer, id},
                 producer,
                 {.op = make_op(joint),
                  .operands = main.operands,
                  .results = std::move(results),
                  .phase = main.phase,
                  .layer = main.layer});
}

// The op that finds the largest magnitudes of its first results along with them, for the ops that
// can.
std::optional<OpRef> with_amax(const Op& op) {
  const auto with = [](auto attrs) -> std::optional<OpRef> {
    if (attrs.amax) {
      return std::nullopt;
    }
    attrs.amax = true;
    return make_op(attrs);
  };
  if (const auto* norm = op.get_if<RmsNormAttrs>(); norm != nullptr) {
    return with(*norm);
  }
  if (const auto* norm = op.get_if<RmsNormBackwardAttrs>(); norm != nullptr) {
    return with(*norm);
  }
  if (const auto* rope = op.get_if<RopeAttrs>(); rope != nullptr) {
    return with(*rope);
  }
  if (const auto* swiglu = op.get_if<SwigluAttrs>(); swiglu != nullptr) {
    return with(*swiglu);
  }
  if (const auto* swiglu = op.get_if<SwigluBackwardAttrs>(); swiglu != nullptr) {
    return with(*swiglu);
  }
  return std::nullopt;
}

// y = f(..); a = amax(y) over everything  ->  y, a = f{amax}(..)
void amax_into_producer(Fusion& fusion, NodeId id) {
  const Node& node = fusion.node(id);
  const auto op = fusion.taken(id) ? std::nullopt : with_amax(*node.op);
  if (!op) {
    return;
  }
  const std::size_t num_seen = node.op->get_if<SwigluBackwardAttrs>() != nullptr ? 2 : 1;
  std::vector<NodeId> parts = {id};
  std::vector<ValueId> results = node.results;
  for (std::size_t i = 0; i < num_seen; ++i) {
    const ValueId seen = node.results[i];
    const auto num_dims = static_cast<std::int64_t>(fusion.graph()[seen].type.num_dims());
    const auto& readers = fusion.readers(seen);
    const auto reader = std::ranges::find_if(readers, [&](NodeId other) {
      const auto* amax = fusion.op<AmaxAttrs>(other);
      return amax != nullptr && amax->dims == num_dims && fusion.node(other).phase == node.phase;
    });
    if (reader == readers.end()) {
      return;
    }
    parts.push_back(*reader);
    results.push_back(fusion.node(*reader).results[0]);
  }
  fusion.replace(parts,
                 id,
                 {.op = *op,
                  .operands = node.operands,
                  .results = std::move(results),
                  .phase = node.phase,
                  .layer = node.layer});
}

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
                  .layer = node.layer});
}

// One part of a grouped weight gradient: slice and addition to its state.
struct AccumulatedPart {
  NodeId slice;
  NodeId addition;
};

// The parts of `whole`, or none unless every reader is a slice that is only added to a state.
std::vector<AccumulatedPart> accumulated_parts(const Fusion& fusion, ValueId whole) {
  std::vector<AccumulatedPart> parts;
  for (const NodeId slice : fusion.readers(whole)) {
    const auto* attrs = fusion.op<SliceAttrs>(slice);
    const auto reader =
        attrs != nullptr ? fusion.only_reader(fusion.node(slice).results[0]) : std::nullopt;
    if (!reader || attrs->dim != 0 || fusion.op<AddAttrs>(*reader) == nullptr ||
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
                    .layer = node.layer});
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

template <class Apply>
Graph apply_to_all(const Graph& graph, Apply apply) {
  Fusion fusion(graph);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    apply(fusion, NodeId::of(i));
  }
  return fusion.apply();
}

}  // namespace

Graph fuse(const Graph& graph) {
  Graph result = apply_to_all(graph, add_into_norm<RmsNormAttrs>);
  result = apply_to_all(result, add_into_norm<LayerNormAttrs>);
  result = apply_to_all(result, bias_into_layer_norm);
  result = apply_to_all(result, bias_into_gelu);
  result = apply_to_all(
      result, weight_gradient_into_backward<RmsNormBackwardAttrs, RmsNormWeightGradientAttrs>);
  result = apply_to_all(
      result, weight_gradient_into_backward<LayerNormBackwardAttrs, LayerNormWeightGradientAttrs>);
  result = apply_to_all(result, residual_into_norm_backward<RmsNormBackwardAttrs>);
  result = apply_to_all(result, residual_into_norm_backward<LayerNormBackwardAttrs>);
  result = apply_to_all(result, loss_with_gradients);
  result = apply_to_all(result, transposition_into_quantize);
  result = apply_to_all(result, amax_into_producer);
  result = apply_to_all(result, accumulation_into_producer);
  return apply_to_all(result, accumulation_into_group);
}

Graph start_accumulators(Graph graph) {
  for (Node& node : graph.nodes) {
    if (node.phase == Phase::kUpdate) {
      continue;
    }
    const auto drop_last = [&](auto attrs) {
      attrs.accumulate = false;
      node.op = make_op(attrs);
      node.operands.pop_back();
    };
    if (const auto* matmul = node.op->get_if<MatmulAttrs>(); matmul && matmul->accumulate) {
      drop_last(*matmul);
    } else if (const auto* scaled = node.op->get_if<ScaledMatmulAttrs>();
               scaled && scaled->accumulate) {
      drop_last(*scaled);
    } else if (const auto* embedding = node.op->get_if<EmbeddingBackwardAttrs>();
               embedding && embedding->accumulate) {
      drop_last(*embedding);
    } else if (const auto* loss = node.op->get_if<CrossEntropyAttrs>(); loss && loss->accumulate) {
      drop_last(*loss);
    } else if (node.op->get_if<AddAttrs>() != nullptr &&
               graph[node.operands[0]].kind == ValueKind::kGradient) {
      node.op = make_op(CastAttrs{.dtype = DType::kF32});
      node.operands.erase(node.operands.begin());
    }
  }
  verify(graph);
  return graph;
}

}  // namespace tessera
