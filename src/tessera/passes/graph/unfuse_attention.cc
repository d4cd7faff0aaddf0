#include "tessera/passes/graph/unfuse_attention.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/fusion.h"

namespace tessera {
namespace {

// In the order of AttentionKernels.
constexpr auto kKernelNames =
    std::to_array<std::string_view>({"flash", "fused_softmax", "unfused"});

// The ops in place of one attention node, in order.
class UnfusedAttention {
 public:
  UnfusedAttention(Fusion& fusion, NodeId id)
      : fusion_(fusion), id_(id), whole_(fusion.node(id)), attrs_(*fusion.op<AttentionAttrs>(id)) {}

  void replace(AttentionKernels kernels) {
    const ValueId lse = whole_.results[1];
    TESSERA_REQUIRE(fusion_.readers(lse).empty() && !fusion_.is_output(lse),
                    ErrorCode::kUnsupported,
                    "node {} of graph {}: something reads the log-sum-exp of attention, expected "
                    "attention = \"flash\", which alone has it",
                    id_.index,
                    fusion_.graph().name);
    const std::vector<Dim>& q = type(0).dims;
    const std::vector<Dim>& k = type(1).dims;
    const std::int64_t group = q[2].bound / k[2].bound;
    const ValueId scores =
        add(BatchedProductAttrs{.form = BatchedForm::kScores,
                                .group = group,
                                .keys_dim = k[1].name == q[1].name ? "keys" : k[1].name},
            {whole_.operands[0], whole_.operands[1]});
    const ValueId weights = softmax(scores, kernels == AttentionKernels::kFusedSoftmax);
    add(BatchedProductAttrs{.form = BatchedForm::kValues, .group = group},
        {weights, whole_.operands[2]},
        whole_.results[0]);
    fusion_.replace_by({id_}, id_, std::move(nodes_));
  }

 private:
  const TensorType& type(std::size_t operand) const {
    return fusion_.graph()[whole_.operands[operand]].type;
  }

  ValueId softmax(ValueId scores, bool is_fused) {
    const ScoreMask mask{.causal = attrs_.causal, .window = attrs_.window};
    const bool has_cap = attrs_.softcap > 0.0;
    if (!is_fused || has_cap) {
      scores = add(MultiplyAttrs{.factor = attrs_.scale}, {scores});
    }
    if (has_cap) {
      scores = add(SoftcapAttrs{.cap = attrs_.softcap}, {scores});
    }
    if (is_fused) {
      return add(ScaleMaskSoftmaxAttrs{.scale = has_cap ? 1.0 : attrs_.scale, .mask = mask},
                 with_ids(scores));
    }
    scores = add(MaskScoresAttrs{.mask = mask}, with_ids(scores));
    return add(ScaleMaskSoftmaxAttrs{.masked = false}, {scores});
  }

  std::vector<ValueId> with_ids(ValueId scores) const {
    std::vector<ValueId> operands = {scores};
    operands.insert(operands.end(), whole_.operands.begin() + 3, whole_.operands.end());
    return operands;
  }

  template <class Attrs>
  ValueId add(Attrs attrs, const std::vector<ValueId>& operands, ValueId result = {}) {
    const ValueId made = result.valid() ? result : fusion_.fresh();
    nodes_.push_back({.op = make_op(std::move(attrs)),
                      .operands = operands,
                      .results = {made},
                      .phase = whole_.phase,
                      .layer = whole_.layer,
                      .chunk = whole_.chunk});
    return made;
  }

  Fusion& fusion_;
  NodeId id_;
  const Node& whole_;
  const AttentionAttrs& attrs_;
  std::vector<Node> nodes_;
};

// p = scale_mask_softmax(x, ids)  ->  the same one by one
void unfuse_softmax(Fusion& fusion, NodeId id) {
  const ScaleMaskSoftmaxAttrs attrs = *fusion.op<ScaleMaskSoftmaxAttrs>(id);
  const Node& whole = fusion.node(id);
  std::vector<Node> nodes;
  const auto add = [&](OpRef op, std::vector<ValueId> operands, ValueId result) {
    nodes.push_back({.op = std::move(op),
                     .operands = std::move(operands),
                     .results = {result},
                     .phase = whole.phase,
                     .layer = whole.layer,
                     .chunk = whole.chunk});
    return result;
  };
  std::vector<ValueId> masked = whole.operands;
  masked[0] =
      add(make_op(MultiplyAttrs{.factor = attrs.scale}), {whole.operands[0]}, fusion.fresh());
  const ValueId scores = add(make_op(MaskScoresAttrs{.mask = attrs.mask}), masked, fusion.fresh());
  add(make_op(ScaleMaskSoftmaxAttrs{.masked = false}), {scores}, whole.results[0]);
  fusion.replace_by({id}, id, std::move(nodes));
}

}  // namespace

std::string to_string(AttentionKernels kernels) {
  return std::string(kKernelNames.at(static_cast<std::size_t>(kernels)));
}

void parse_text(std::string_view text, AttentionKernels& kernels) {
  const auto* const found = std::ranges::find(kKernelNames, text);
  TESSERA_REQUIRE(
      found != kKernelNames.end(),
      ErrorCode::kInvalidArgument,
      "found \"{}\", expected the kernels of attention: flash, fused_softmax or unfused",
      text);
  kernels = static_cast<AttentionKernels>(found - kKernelNames.begin());
}

// What lies between the two products has but one operand beside ids.
bool is_of_unfused_attention(const Graph& graph, const Node& node) {
  if (node.op->get_if<BatchedProductAttrs>() != nullptr ||
      node.op->get_if<ScaleMaskSoftmaxAttrs>() != nullptr ||
      node.op->get_if<MaskScoresAttrs>() != nullptr) {
    return true;
  }
  const bool is_between = node.op->get_if<MultiplyAttrs>() != nullptr ||
                          node.op->get_if<SoftcapAttrs>() != nullptr ||
                          node.op->get_if<DropoutAttrs>() != nullptr;
  const NodeId producer = is_between ? graph[node.operands.back()].producer : NodeId{};
  if (!producer.valid()) {
    return false;
  }
  const Node& before = graph.nodes[producer.at()];
  const auto* product = before.op->get_if<BatchedProductAttrs>();
  return is_of_unfused_attention(graph, before) &&
         (product == nullptr || product->form == BatchedForm::kScores);
}

Graph unfuse_attention(Graph graph, AttentionKernels kernels) {
  return apply_to_all(std::move(graph), [&](Fusion& fusion, NodeId id) {
    if (kernels == AttentionKernels::kFlash) {
      return;
    }
    const auto* softmax = fusion.op<ScaleMaskSoftmaxAttrs>(id);
    if (fusion.op<AttentionAttrs>(id) != nullptr) {
      UnfusedAttention(fusion, id).replace(kernels);
    } else if (softmax != nullptr && softmax->masked && kernels == AttentionKernels::kUnfused) {
      unfuse_softmax(fusion, id);
    }
  });
}

}  // namespace tessera
