#include "tessera/passes/graph/fuse.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/fusion.h"

namespace tessera {
namespace {

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
  if (!runs_beside(addition, node) || fusion.readers(sum).front() != id) {
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
                  .layer = node.layer,
                  .chunk = node.chunk});
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
    if (biased == nullptr || !runs_beside(*biased, node) ||
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
                    .layer = node.layer,
                    .chunk = node.chunk});
    return;
  }
}

// The op that adds a vector to the rows of its last operand, for the ops that can.
std::optional<OpRef> with_bias(const Op& op) {
  if (const auto* gelu = op.get_if<GeluAttrs>()) {
    return make_op(GeluAttrs{.bias = true, .exact = gelu->exact});
  }
  if (const auto* gelu = op.get_if<GeluBackwardAttrs>()) {
    return make_op(GeluBackwardAttrs{.bias = true, .exact = gelu->exact});
  }
  if (const auto* dropout = op.get_if<DropoutAttrs>()) {
    DropoutAttrs biased = *dropout;
    biased.bias = true;
    return make_op(biased);
  }
  return std::nullopt;
}

// u = add_bias(x, b); y = gelu(u); gelu_backward(dy, u)  ->  gelu{bias}(x, b), gelu_backward{bias}(
// dy, x, b), and dropout alike. Not where that would keep what was gathered for forward.
void bias_into_reader(Fusion& fusion, NodeId id) {
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
        (is_gathered && !runs_beside(other, node))) {
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
                    .layer = other.layer,
                    .chunk = other.chunk});
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
                    .layer = main.layer,
                    .chunk = main.chunk});
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
                  .layer = node.layer,
                  .chunk = node.chunk});
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
      earlier.chunk = node.chunk;
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
                    .layer = node.layer,
                    .chunk = node.chunk});
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
  if (quantize == nullptr || quantize->transposed || !runs_beside(fusion.node(producer), node)) {
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
                  .layer = main.layer,
                  .chunk = main.chunk});
}

// The op that makes of its first results what `float8` asks for along with them, for the ops that
// can.
std::optional<OpRef> with_float8(const Op& op, const Float8Results& float8) {
  std::optional<OpRef> found;
  const auto try_op = [&]<class Attrs>(const Attrs* attrs) {
    if (attrs != nullptr && attrs->float8.count() == 0) {
      Attrs joint = *attrs;
      joint.float8 = float8;
      found = make_op(joint);
    }
  };
  try_op(op.get_if<RmsNormAttrs>());
  try_op(op.get_if<RmsNormBackwardAttrs>());
  try_op(op.get_if<SwigluAttrs>());
  try_op(op.get_if<SwigluBackwardAttrs>());
  const auto* rope = op.get_if<RopeAttrs>();
  if (rope != nullptr && !rope->amax && float8.amax) {
    found = make_op(RopeAttrs{.inverse = rope->inverse, .amax = true});
  }
  return found;
}

std::int64_t num_dims(const Fusion& fusion, ValueId value) {
  return static_cast<std::int64_t>(fusion.graph()[value].type.num_dims());
}

// What of a value another op could make along with it: the nodes that do now, what they make, and
// how the op is asked for it.
struct OfValue {
  std::vector<NodeId> nodes;
  std::vector<ValueId> results;
  Float8Results float8;
};

// a = amax(y) over everything
std::optional<OfValue> largest_magnitude(const Fusion& fusion, ValueId y) {
  for (const NodeId reader : fusion.readers(y)) {
    const auto* amax = fusion.op<AmaxAttrs>(reader);
    if (amax != nullptr && amax->dims == num_dims(fusion, y)) {
      return OfValue{
          .nodes = {reader}, .results = fusion.node(reader).results, .float8 = {.amax = true}};
    }
  }
  return std::nullopt;
}

// The amax of rows that finds the magnitudes for the quantize_float8 `id`, and for nothing else.
std::optional<NodeId> own_amax(const Fusion& fusion, NodeId id) {
  const auto* quantize = fusion.op<QuantizeFloat8Attrs>(id);
  if (quantize == nullptr || quantize->amax || quantize->leading || quantize->transposed) {
    return std::nullopt;
  }
  const Node& node = fusion.node(id);
  const ValueId a = node.operands[1];
  const NodeId producer = fusion.graph()[a].producer;
  const auto* amax = producer.valid() ? fusion.op<AmaxAttrs>(producer) : nullptr;
  const bool is_found = amax != nullptr && amax->dims == quantize->dims && !amax->leading &&
                        fusion.node(producer).operands[0] == node.operands[0] &&
                        fusion.only_reader(a) == std::optional(id) &&
                        runs_beside(fusion.node(producer), node) &&
                        quantize->dims < num_dims(fusion, node.operands[0]);
  return is_found ? std::optional(producer) : std::nullopt;
}

// a = amax(y) of rows; c, i = quantize_float8(y, a)
std::optional<OfValue> codes_of_rows(const Fusion& fusion, ValueId y) {
  for (const NodeId reader : fusion.readers(y)) {
    const auto amax = own_amax(fusion, reader);
    const auto* quantize = fusion.op<QuantizeFloat8Attrs>(reader);
    if (amax && quantize->dims == 1 && quantize->power_of_two) {
      return OfValue{.nodes = {*amax, reader},
                     .results = fusion.node(reader).results,
                     .float8 = {.codes = true, .dtype = quantize->dtype}};
    }
  }
  return std::nullopt;
}

// Whether a node is a norm over several dims, which makes nothing along with its result.
bool norms_many_dims(const Fusion& fusion, const Node& node) {
  const auto num_dims_of = [&](std::size_t gain) {
    return fusion.graph()[node.operands[gain]].type.num_dims();
  };
  const auto* forward = node.op->get_if<RmsNormAttrs>();
  return (forward != nullptr && num_dims_of(forward->residual ? 2 : 1) > 1) ||
         (node.op->get_if<RmsNormBackwardAttrs>() != nullptr && num_dims_of(2) > 1);
}

// y = f(..), and what `find` finds of y  ->  all from one pass
template <class Find>
void float8_into_producer(Fusion& fusion, NodeId id, const Find& find) {
  const Node& node = fusion.node(id);
  if (norms_many_dims(fusion, node)) {
    return;
  }
  const std::size_t num_seen = node.op->get_if<SwigluBackwardAttrs>() != nullptr ? 2 : 1;
  std::vector<NodeId> parts = {id};
  std::vector<ValueId> results = node.results;
  Float8Results float8;
  for (std::size_t i = 0; i < num_seen; ++i) {
    const std::optional<OfValue> found = find(fusion, node.results[i]);
    if (!found || !runs_beside(fusion.node(found->nodes.back()), node) ||
        (i > 0 && found->float8 != float8)) {
      return;
    }
    float8 = found->float8;
    parts.insert(parts.end(), found->nodes.begin(), found->nodes.end());
    results.insert(results.end(), found->results.begin(), found->results.end());
  }
  const auto op = fusion.taken(id) ? std::nullopt : with_float8(*node.op, float8);
  if (op) {
    fusion.replace(parts,
                   id,
                   {.op = *op,
                    .operands = node.operands,
                    .results = std::move(results),
                    .phase = node.phase,
                    .layer = node.layer,
                    .chunk = node.chunk});
  }
}

// a = amax(x) of rows; c, i = quantize_float8(x, a)  ->  c, i = quantize_float8{amax}(x)
void amax_into_quantize(Fusion& fusion, NodeId id) {
  const auto amax = own_amax(fusion, id);
  if (amax) {
    const Node& node = fusion.node(id);
    QuantizeFloat8Attrs joint = *fusion.op<QuantizeFloat8Attrs>(id);
    joint.amax = true;
    fusion.replace({*amax, id},
                   id,
                   {.op = make_op(joint),
                    .operands = {node.operands[0]},
                    .results = node.results,
                    .phase = node.phase,
                    .layer = node.layer,
                    .chunk = node.chunk});
  }
}

void magnitude_into_producer(Fusion& fusion, NodeId id) {
  float8_into_producer(fusion, id, largest_magnitude);
}

void codes_into_producer(Fusion& fusion, NodeId id) {
  float8_into_producer(fusion, id, codes_of_rows);
}

// Each goes over the whole graph before the next one does: a norm takes an addition in before it
// can take in a bias of the addition's.
constexpr std::array kRules = {
    add_into_norm<RmsNormAttrs>,
    add_into_norm<LayerNormAttrs>,
    bias_into_layer_norm,
    bias_into_reader,
    weight_gradient_into_backward<RmsNormBackwardAttrs, RmsNormWeightGradientAttrs>,
    weight_gradient_into_backward<LayerNormBackwardAttrs, LayerNormWeightGradientAttrs>,
    residual_into_norm_backward<RmsNormBackwardAttrs>,
    residual_into_norm_backward<LayerNormBackwardAttrs>,
    loss_with_gradients,
    transposition_into_quantize,
    magnitude_into_producer,
    codes_into_producer,
    amax_into_quantize,
};

}  // namespace

Graph fuse(Graph graph) {
  for (const auto& rule : kRules) {
    graph = apply_to_all(std::move(graph), rule);
  }
  return graph;
}

Graph fuse_loss(Graph graph) {
  return apply_to_all(std::move(graph), loss_with_gradients);
}

}  // namespace tessera
