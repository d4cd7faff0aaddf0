#include "tessera/passes/graph/product_epilogues.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/fusion.h"

namespace tessera {
namespace {

// Of a product that does nothing else to its sums; null for any other node.
const MatmulAttrs* plain_product(const Fusion& fusion, NodeId id) {
  const auto* attrs = fusion.op<MatmulAttrs>(id);
  return attrs != nullptr && *attrs == MatmulAttrs{.transpose_a = attrs->transpose_a,
                                                   .transpose_b = attrs->transpose_b,
                                                   .contract = attrs->contract,
                                                   .dtype = attrs->dtype}
             ? attrs
             : nullptr;
}

// The plain product in the same phase that makes `value`, which `reader` alone reads.
std::optional<NodeId> product_of(const Fusion& fusion, ValueId value, NodeId reader) {
  const NodeId producer = fusion.graph()[value].producer;
  const bool is_found = producer.valid() && fusion.only_reader(value) == std::optional(reader) &&
                        runs_beside(fusion.node(producer), fusion.node(reader)) &&
                        plain_product(fusion, producer) != nullptr;
  return is_found ? std::optional(producer) : std::nullopt;
}

// The product to whose sums alone `id` adds a bias, which has the dims of the product's columns.
std::optional<NodeId> biased_product(const Fusion& fusion, NodeId id) {
  if (fusion.op<AddBiasAttrs>(id) == nullptr) {
    return std::nullopt;
  }
  const Node& addition = fusion.node(id);
  const std::optional<NodeId> product = product_of(fusion, addition.operands[0], id);
  const auto num_dims = [&](ValueId value) {
    return static_cast<std::int64_t>(fusion.graph()[value].type.num_dims());
  };
  return product && num_dims(fusion.node(*product).operands[1]) -
                            plain_product(fusion, *product)->contract ==
                        num_dims(addition.operands[1])
             ? product
             : std::nullopt;
}

// The operands of a product with a bias.
std::vector<ValueId> biased_operands(const Node& product, const Node& addition) {
  return {product.operands[0], product.operands[1], addition.operands[1]};
}

// y = add_bias(matmul(x, w), b), b of several dims  ->  y = matmul{epilogue="bias"}(x, w, b)
void bias_into_product(Fusion& fusion, NodeId id) {
  const std::optional<NodeId> found = biased_product(fusion, id);
  const Node& node = fusion.node(id);
  if (!found || fusion.graph()[node.operands[1]].type.num_dims() < 2) {
    return;
  }
  MatmulAttrs attrs = *plain_product(fusion, *found);
  attrs.epilogue = Epilogue::kBias;
  fusion.replace({*found, id},
                 id,
                 {.op = make_op(attrs),
                  .operands = biased_operands(fusion.node(*found), node),
                  .results = node.results,
                  .phase = node.phase,
                  .layer = node.layer,
                  .chunk = node.chunk});
}

// u = add_bias(matmul(x, w), b); y = gelu(u)
//                                 ->  y, u = matmul{epilogue="gelu_and_argument"}(x, w, b)
void gelu_into_product(Fusion& fusion, NodeId id) {
  const auto* gelu = fusion.op<GeluAttrs>(id);
  if (gelu == nullptr || gelu->bias || gelu->exact) {
    return;
  }
  const Node& node = fusion.node(id);
  const ValueId argument = node.operands[0];
  const NodeId sum = fusion.graph()[argument].producer;
  const std::optional<NodeId> found = sum.valid() ? biased_product(fusion, sum) : std::nullopt;
  if (!found || !runs_beside(fusion.node(sum), node)) {
    return;
  }
  MatmulAttrs attrs = *plain_product(fusion, *found);
  const bool keeps_argument = !fusion.only_reader(argument);
  attrs.epilogue = keeps_argument ? Epilogue::kGeluAndArgument : Epilogue::kGelu;
  std::vector<ValueId> results = {node.results[0]};
  if (keeps_argument) {
    results.push_back(argument);
  }
  fusion.replace({*found, sum, id},
                 sum,
                 {.op = make_op(attrs),
                  .operands = biased_operands(fusion.node(*found), fusion.node(sum)),
                  .results = std::move(results),
                  .phase = node.phase,
                  .layer = node.layer,
                  .chunk = node.chunk});
}

// dx = gelu_backward(matmul(dz, w), u)  ->  dx = matmul{epilogue="gelu_backward"}(dz, w, u)
void gelu_backward_into_product(Fusion& fusion, NodeId id) {
  const auto* backward = fusion.op<GeluBackwardAttrs>(id);
  if (backward == nullptr || backward->bias || backward->exact) {
    return;
  }
  const Node& node = fusion.node(id);
  const std::optional<NodeId> found = product_of(fusion, node.operands[0], id);
  if (!found || fusion.graph()[node.operands[0]].type != fusion.graph()[node.operands[1]].type) {
    return;
  }
  const Node& product = fusion.node(*found);
  MatmulAttrs attrs = *plain_product(fusion, *found);
  attrs.epilogue = Epilogue::kGeluBackward;
  fusion.replace({*found, id},
                 id,
                 {.op = make_op(attrs),
                  .operands = {product.operands[0], product.operands[1], node.operands[1]},
                  .results = node.results,
                  .phase = node.phase,
                  .layer = node.layer,
                  .chunk = node.chunk});
}

}  // namespace

Graph bias_products(Graph graph) {
  return apply_to_all(std::move(graph), bias_into_product);
}

Graph gelu_products(Graph graph) {
  return apply_to_all(apply_to_all(std::move(graph), gelu_into_product),
                      gelu_backward_into_product);
}

}  // namespace tessera
