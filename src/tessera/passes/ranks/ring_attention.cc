#include "tessera/passes/ranks/ring_attention.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"

namespace tessera {
namespace {

// Where the operands of attention and of its gradients are.
struct OperandPlaces {
  std::size_t k;  // v is the next
  std::size_t ids;
};

constexpr OperandPlaces kForward = {.k = 1, .ids = 3};
constexpr OperandPlaces kBackward = {.k = 2, .ids = 6};

// A part of the keys and values of a sequence, of the rank so many places back along each axis.
struct KeyPart {
  ValueId k;
  ValueId v;
  std::vector<std::int64_t> back;
};

struct KeyGradients {
  ValueId dk;
  ValueId dv;
};

// Writes the steps of one node, in its place.
class RingSteps {
 public:
  RingSteps(GraphEdit& edit, NodeId id, const AxisSizes& axes, const OperandPlaces& places)
      : edit_(edit), id_(id), node_(edit.node(id)), axes_(axes), places_(places) {
    for (const AxisSize& axis : axes) {
      if (axis.size > 1) {
        rings_.push_back(axis);
      }
    }
    edit_.remove(id);
  }

  void forward(const AttentionAttrs& attrs) {
    part_ = {.scale = attrs.scale,
             .causal = attrs.causal,
             .spread = attrs.spread,
             .window = attrs.window,
             .softcap = attrs.softcap,
             .steps = num_ranks(axes_)};
    turn(rings_.size(), own_part(), [&](const KeyPart& part) { add_part(part); });
  }

  void backward(const AttentionBackwardAttrs& attrs) {
    gradients_ = {.scale = attrs.scale,
                  .causal = attrs.causal,
                  .spread = attrs.spread,
                  .window = attrs.window,
                  .softcap = attrs.softcap,
                  .steps = num_ranks(axes_)};
    const KeyGradients sums = turn_back(rings_.size(), own_part());
    narrow(0, dq_);
    narrow(1, sums.dk);
    narrow(2, sums.dv);
  }

 private:
  KeyPart own_part() const {
    return {.k = node_.operands[places_.k],
            .v = node_.operands[places_.k + 1],
            .back = std::vector<std::int64_t>(rings_.size(), 0)};
  }

  // Calls body(part) for the parts of all ranks along the first `levels` rings. The next one is
  // asked for before each.
  template <class Body>
  void turn(std::size_t levels, KeyPart part, const Body& body) {
    if (levels == 0) {
      return body(part);
    }
    const std::int64_t size = rings_[levels - 1].size;
    for (std::int64_t step = 0; step < size; ++step) {
      const KeyPart next = step + 1 < size ? shifted(part, levels - 1) : part;
      turn(levels - 1, part, body);
      part = next;
    }
  }

  // The same in backward: what all of these ranks bring to the gradients of this rank's `part`.
  // Sums follow the parts, and travel while the next part is at work.
  KeyGradients turn_back(std::size_t levels, KeyPart part) {
    if (levels == 0) {
      return add_gradients(part);
    }
    const AxisSize& ring = rings_[levels - 1];
    std::optional<KeyGradients> sums;
    for (std::int64_t step = 0; step < ring.size; ++step) {
      const KeyPart next = step + 1 < ring.size ? shifted(part, levels - 1) : part;
      if (sums) {
        sums = KeyGradients{.dk = shift(sums->dk, ring, edit_.fresh()),
                            .dv = shift(sums->dv, ring, edit_.fresh())};
      }
      const KeyGradients more = turn_back(levels - 1, part);
      sums = sums ? KeyGradients{.dk = add(sums->dk, more.dk), .dv = add(sums->dv, more.dv)} : more;
      part = next;
    }
    const bool is_last = levels == rings_.size();
    return {.dk = shift(sums->dk, ring, is_last ? made_as(1) : edit_.fresh()),
            .dv = shift(sums->dv, ring, is_last ? made_as(2) : edit_.fresh())};
  }

  void add_part(const KeyPart& part) {
    std::vector<ValueId> operands = node_.operands;
    set_keys(part, operands);
    if (part_.step > 0) {
      operands.insert(operands.end(), {o_, lse_});
    }
    const bool is_last = part_.step + 1 == part_.steps;
    o_ = is_last ? node_.results[0] : edit_.fresh();
    lse_ = is_last ? node_.results[1] : edit_.fresh();
    insert(make_op(part_), std::move(operands), {o_, lse_});
    ++part_.step;
  }

  KeyGradients add_gradients(const KeyPart& part) {
    std::vector<ValueId> operands = node_.operands;
    set_keys(part, operands);
    if (gradients_.step > 0) {
      operands.push_back(dq_);
    }
    dq_ = gradients_.step + 1 == gradients_.steps ? made_as(0) : edit_.fresh();
    const KeyGradients result = {.dk = edit_.fresh(), .dv = edit_.fresh()};
    insert(make_op(gradients_), std::move(operands), {dq_, result.dk, result.dv});
    ++gradients_.step;
    return result;
  }

  // The part, and the ids of its keys: of queries, positions and documents come before those.
  void set_keys(const KeyPart& part, std::vector<ValueId>& operands) {
    operands[places_.k] = part.k;
    operands[places_.k + 1] = part.v;
    for (const std::size_t ids : {places_.ids + 1, places_.ids + 3}) {
      operands[ids] = cut_ids(operands[ids], part.back);
    }
  }

  ValueId cut_ids(ValueId ids, const std::vector<std::int64_t>& back) {
    LocalSliceAttrs slice = {.axes = axes_, .dim = 1};
    for (std::size_t ring = 0; ring < rings_.size(); ++ring) {
      if (back[ring] > 0) {
        slice.back.push_back({.name = rings_[ring].name, .size = back[ring]});
      }
    }
    return emit(slice, {ids});
  }

  KeyPart shifted(const KeyPart& part, std::size_t ring) {
    KeyPart next = {.k = shift(part.k, rings_[ring], edit_.fresh()),
                    .v = shift(part.v, rings_[ring], edit_.fresh()),
                    .back = part.back};
    ++next.back[ring];
    return next;
  }

  ValueId shift(ValueId value, const AxisSize& ring, ValueId result) {
    insert(make_op(RingShiftAttrs{.axes = {ring}}), {value}, {result});
    return result;
  }

  ValueId add(ValueId a, ValueId b) { return emit(AddAttrs{}, {a, b}); }

  template <class Attrs>
  ValueId emit(Attrs attrs, std::vector<ValueId> operands) {
    const ValueId result = edit_.fresh();
    insert(make_op(std::move(attrs)), std::move(operands), {result});
    return result;
  }

  // The f32 value that is result `index` of the node, or is to become it.
  ValueId made_as(std::size_t index) {
    return dtype_of(index) == DType::kF32 ? node_.results[index] : edit_.fresh();
  }

  void narrow(std::size_t index, ValueId value) {
    if (value != node_.results[index]) {
      insert(make_op(CastAttrs{.dtype = dtype_of(index)}), {value}, {node_.results[index]});
    }
  }

  DType dtype_of(std::size_t index) const { return edit_.graph()[node_.results[index]].type.dtype; }

  void insert(OpRef op, std::vector<ValueId> operands, std::vector<ValueId> results) {
    edit_.insert(id_,
                 {.op = std::move(op),
                  .operands = std::move(operands),
                  .results = std::move(results),
                  .phase = node_.phase,
                  .layer = node_.layer,
                  .chunk = node_.chunk});
  }

  GraphEdit& edit_;
  NodeId id_;
  const Node& node_;
  const AxisSizes& axes_;
  OperandPlaces places_;
  AxisSizes rings_;  // of several ranks
  AttentionPartAttrs part_;
  AttentionPartBackwardAttrs gradients_;
  ValueId o_;  // of the steps so far
  ValueId lse_;
  ValueId dq_;
};

}  // namespace

Graph ring_attention(const Graph& graph, const AxisSizes& axes) {
  GraphEdit edit(graph);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Op& op = *graph.nodes[i].op;
    if (const auto* attrs = op.get_if<AttentionAttrs>(); attrs != nullptr && attrs->ring) {
      RingSteps(edit, NodeId::of(i), axes, kForward).forward(*attrs);
    } else if (const auto* of = op.get_if<AttentionBackwardAttrs>(); of != nullptr && of->ring) {
      RingSteps(edit, NodeId::of(i), axes, kBackward).backward(*of);
    }
  }
  return edit.apply();
}

}  // namespace tessera
