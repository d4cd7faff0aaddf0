#include "tessera/passes/graph/quantize_products.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ir/adapters.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"

namespace tessera {
namespace {

// Where codes are made: before the node that first reads them, or, for its layer, once a step.
struct Making {
  NodeId reader;
  bool once = false;
};

// Codes of a value, and what they are to be multiplied by.
struct Codes {
  ValueId codes;
  ValueId inverse;
  Making made = {};
};

// How a product reads a factor.
struct Factor {
  ValueId value;
  std::int64_t dims = 1;  // that are summed over
  bool leading = false;
};

class Quantizing {
 public:
  Quantizing(const Graph& graph, const Float8Options& options, WeightCodes weights)
      : graph_(graph), edit_(graph), options_(options), weights_(weights), users_(users(graph)) {
    for (const Node& node : graph.nodes) {
      num_layers_ = std::max(num_layers_, node.layer + 1);
    }
    for (const ValueId parameter : graph.sources(ValueKind::kParameter)) {
      if (is_adapter(graph[parameter].name)) {
        of_adapters_.insert(parameter);
      }
    }
    for (const Output& output : graph.outputs) {
      if (output.kind == OutputKind::kGradient && is_adapter(output.parameter)) {
        of_adapters_.insert(output.value);
      }
    }
  }

  Graph run() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      const auto* attrs = node.op->get_if<MatmulAttrs>();
      if (attrs != nullptr && is_chosen(node)) {
        quantize(NodeId::of(i), *attrs);
      }
      const auto* loss = node.op->get_if<CrossEntropyAttrs>();
      if (loss != nullptr && options_.head) {
        quantize_loss(NodeId::of(i), *loss);
      }
    }
    TESSERA_REQUIRE(
        !codes_.empty(),
        ErrorCode::kInvalidArgument,
        "graph {} has no product for 8-bit floats: {} layers, of which the first {} and "
        "the last {} stay as they are",
        graph_.name,
        num_layers_,
        options_.skip_first,
        options_.skip_last);
    return edit_.apply();
  }

 private:
  // Products of the chosen layers, but for those of adapters, whose inner dim is too short to gain,
  // and of buffers, which are never rounded.
  bool is_chosen(const Node& node) const {
    const auto is_of_adapter = [&](ValueId value) { return of_adapters_.contains(value); };
    const auto is_buffer = [&](ValueId value) { return graph_[value].kind == ValueKind::kBuffer; };
    return node.layer >= options_.skip_first && node.layer < num_layers_ - options_.skip_last &&
           node.layer >= 0 && std::ranges::none_of(node.operands, is_of_adapter) &&
           std::ranges::none_of(node.results, is_of_adapter) &&
           std::ranges::none_of(node.operands, is_buffer);
  }

  void quantize(NodeId id, const MatmulAttrs& attrs) {
    const Node& node = graph_.nodes[id.at()];
    const Codes a = codes_of(
        id, {.value = node.operands[0], .dims = attrs.contract, .leading = attrs.transpose_a});
    const Codes b = codes_of(
        id, {.value = node.operands[1], .dims = attrs.contract, .leading = !attrs.transpose_b});
    edit_.remove(id);
    const ScaledMatmulAttrs product = {
        .contract = attrs.contract,
        .dtype = attrs.dtype,
        .accumulate = attrs.accumulate,
        .fast_accumulation = options_.fast_accumulation && node.phase == Phase::kForward};
    insert({.reader = id},
           make_op(product),
           {a.codes, b.codes, a.inverse, b.inverse},
           {node.results[0]});
  }

  // Head and loss. The gradients read the codes that the loss does, made where it is: fuse() makes
  // one op of both.
  void quantize_loss(NodeId id, const CrossEntropyAttrs& attrs) {
    const Node& node = graph_.nodes[id.at()];
    const NodeId reader =
        losses_.try_emplace({node.operands[0], node.operands[1]}, id).first->second;
    const ValueId x = node.operands[0];
    const ValueId head = node.operands[1];
    const auto rows = static_cast<std::int64_t>(graph_[x].type.num_dims()) - 1;
    const Codes of_x = codes_of(reader, {.value = x});
    const Codes of_head = codes_of(reader, {.value = head});
    std::vector<ValueId> operands = {of_x.codes,
                                     of_head.codes,
                                     node.operands[2],
                                     node.operands[3],
                                     of_x.inverse,
                                     of_head.inverse};
    const auto add_transposed = [&](ValueId value, std::int64_t dims) {
      const Codes codes = codes_of(reader, {.value = value, .dims = dims, .leading = true});
      operands.insert(operands.end(), {codes.codes, codes.inverse});
    };
    if (attrs.gradients) {
      add_transposed(head, 1);
    }
    if (attrs.makes_head_gradient()) {
      add_transposed(x, rows);
    }
    CrossEntropyAttrs of_codes = attrs;
    of_codes.codes = true;
    of_codes.dtype = attrs.gradients ? graph_[x].type.dtype : DType::kF32;
    of_codes.power_of_two = attrs.gradients && options_.rowwise;
    edit_.remove(id);
    // Behind all codes that are made where the loss is.
    edit_.insert(NodeId::of(id.at() + 1),
                 {.op = make_op(of_codes),
                  .operands = std::move(operands),
                  .results = node.results,
                  .phase = node.phase,
                  .layer = node.layer,
                  .chunk = node.chunk});
  }

  // The codes of a factor along what is summed over.
  Codes codes_of(NodeId reader, const Factor& factor) {
    Codes codes = quantized(reader, factor);
    if (factor.leading) {
      const auto [found, is_new] = transposed_.try_emplace({codes.codes, factor.dims});
      if (is_new) {
        found->second = edit_.fresh();
        insert(codes.made,
               make_op(TransposeCodesAttrs{.rows = factor.dims}),
               {codes.codes},
               {found->second});
      }
      codes.codes = found->second;
    }
    return codes;
  }

  // The codes of a factor as it lies, made where they are first read. Those of a parameter are made
  // again for backward, as a parameter is gathered again, unless they are to be kept.
  Codes quantized(NodeId reader, Factor factor) {
    const TensorType& type = graph_[factor.value].type;
    if (!options_.rowwise) {
      factor.dims = static_cast<std::int64_t>(type.num_dims());
      factor.leading = false;
    }
    const bool again = !options_.keep_weight_codes &&
                       graph_[factor.value].kind == ValueKind::kParameter &&
                       graph_.nodes[reader.at()].phase != Phase::kForward;
    const auto [found, is_new] =
        codes_.try_emplace({factor.value, factor.dims, factor.leading, again});
    if (is_new) {
      const Making made = making_of_codes(reader, factor.value);
      found->second = {.codes = edit_.fresh(), .inverse = edit_.fresh(), .made = made};
      const ValueId amax = edit_.fresh();
      insert(made,
             make_op(AmaxAttrs{.dims = factor.dims, .leading = factor.leading}),
             {factor.value},
             {amax});
      insert(made,
             make_op(QuantizeFloat8Attrs{.dims = factor.dims,
                                         .leading = factor.leading,
                                         .dtype = dtype_of(factor.value),
                                         .power_of_two = options_.rowwise}),
             {factor.value, amax},
             {found->second.codes, found->second.inverse});
    }
    return found->second;
  }

  // Where codes that `reader` is the first to read are made: right there; those of a layer's weight
  // once a step, if asked; those of an activation that nothing else in backward reads beside its
  // codes for forward, so that backward keeps a byte an element.
  Making making_of_codes(NodeId reader, ValueId value) const {
    const bool is_parameter = graph_[value].kind == ValueKind::kParameter;
    if (is_parameter && weights_ == WeightCodes::kOnceAStep &&
        graph_.nodes[reader.at()].layer >= 0) {
      return {.reader = reader, .once = true};
    }
    const auto is_forward = [&](NodeId id) {
      return graph_.nodes[id.at()].phase == Phase::kForward;
    };
    const auto reads_codes = [&](NodeId id) {
      const Node& node = graph_.nodes[id.at()];
      return is_forward(id) || (node.op->get_if<MatmulAttrs>() != nullptr && is_chosen(node));
    };
    if (is_parameter || !std::ranges::all_of(users_[value.at()], reads_codes)) {
      return {.reader = reader};
    }
    for (auto known = codes_.lower_bound({value, 0, false, false});
         known != codes_.end() && std::get<ValueId>(known->first) == value;
         ++known) {
      const Making& made = known->second.made;
      if (made.reader.valid() && is_forward(made.reader)) {
        return made;
      }
    }
    return {.reader = reader};
  }

  // What backward makes is a gradient.
  DType dtype_of(ValueId value) const {
    const NodeId producer = graph_[value].producer;
    const bool is_gradient =
        producer.valid() && graph_.nodes[producer.at()].phase != Phase::kForward;
    return is_gradient ? options_.gradients : DType::kF8E4M3;
  }

  void insert(Making where, OpRef op, std::vector<ValueId> operands, std::vector<ValueId> results) {
    const Node& like = graph_.nodes[where.reader.at()];
    edit_.insert(where.once ? NodeId::of(0) : where.reader,
                 {.op = std::move(op),
                  .operands = std::move(operands),
                  .results = std::move(results),
                  .phase = where.once ? Phase::kStart : like.phase,
                  .layer = like.layer,
                  .chunk = like.chunk});
  }

  const Graph& graph_;
  GraphEdit edit_;
  const Float8Options& options_;
  WeightCodes weights_;
  std::vector<std::vector<NodeId>> users_;
  std::int32_t num_layers_ = 0;
  std::set<ValueId> of_adapters_;  // adapters, and their gradients
  std::map<std::tuple<ValueId, std::int64_t, bool, bool>, Codes> codes_;
  std::map<std::pair<ValueId, std::int64_t>, ValueId> transposed_;
  std::map<std::pair<ValueId, ValueId>, NodeId> losses_;  // of hidden states and head
};

}  // namespace

Graph quantize_products(const Graph& graph, const Float8Options& options, WeightCodes weights) {
  return Quantizing(graph, options, weights).run();
}

}  // namespace tessera
