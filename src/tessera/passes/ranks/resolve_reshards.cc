#include "tessera/passes/ranks/resolve_reshards.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/graph_edit.h"
#include "tessera/passes/ranks/reshard.h"

namespace tessera {
namespace {

// The first axes that both begin with.
AxisSizes shared_axes(const AxisSizes& a, const AxisSizes& b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  return {a.begin(), end};
}

// Finds the steps from one layout to another, each an op.
class Resharding {
 public:
  explicit Resharding(const ReshardAttrs& attrs)
      : whole_(parse_tensor_type(attrs.type)),
        at_(parse_layout(attrs.from, whole_)),
        to_(parse_layout(attrs.to, whole_)) {}

  std::vector<OpRef> steps() {
    fold();
    // What needs no axis of another dim is cut first, so that less is moved.
    slice();
    exchange();
    gather();
    slice();
    TESSERA_CHECK(
        at_ == to_, "a reshard to {} ends at {}", to_string(to_, whole_), to_string(at_, whole_));
    return std::move(steps_);
  }

 private:
  void fold() {
    AxisSizes axes;
    std::ranges::copy_if(at_.partial, std::back_inserter(axes), [&](const AxisSize& axis) {
      return std::ranges::find(to_.partial, axis) == to_.partial.end();
    });
    if (axes.empty()) {
      return;
    }
    const bool is_max = at_.partial_op == PartialOp::kMax;
    for (std::size_t d = 0; d < at_.dims.size() && !is_max; ++d) {
      if (axes_beyond(at_.dims[d].axes, to_.dims[d].axes) == axes) {
        add(ReduceScatterAttrs{.axes = axes, .dim = index(d)});
        at_.dims[d] = to_.dims[d];
        return folded();
      }
    }
    add(AllReduceAttrs{.axes = axes, .max = is_max});
    folded();
  }

  void folded() {
    at_.partial = to_.partial;
    at_.partial_op = to_.partial_op;
  }

  // A cut that goes from one dim to another, with all of the axes by which the two layouts differ.
  void exchange() {
    for (std::size_t from = 0; from < at_.dims.size(); ++from) {
      const AxisSizes shared = shared_axes(at_.dims[from].axes, to_.dims[from].axes);
      const AxisSizes axes = axes_beyond(shared, at_.dims[from].axes).value();
      if (axes.empty() || at_.dims[from] == to_.dims[from]) {
        continue;
      }
      for (std::size_t to = 0; to < at_.dims.size(); ++to) {
        if (axes_beyond(at_.dims[to].axes, to_.dims[to].axes) == axes) {
          add(AllToAllAttrs{.axes = axes,
                            .from = index(from),
                            .to = index(to),
                            .bound = whole_.dims[from].bound / num_ranks(shared)});
          at_.dims[to] = to_.dims[to];
          at_.dims[from] = {.axes = shared};
          break;
        }
      }
    }
  }

  void gather() {
    for (std::size_t d = 0; d < at_.dims.size(); ++d) {
      const AxisSizes shared = shared_axes(at_.dims[d].axes, to_.dims[d].axes);
      const AxisSizes gathered = axes_beyond(shared, at_.dims[d].axes).value();
      if (at_.dims[d] != to_.dims[d] && !gathered.empty()) {
        // Parts that are cut again have no padding.
        add(AllGatherAttrs{
            .axes = gathered, .dim = index(d), .bound = whole_.dims[d].bound / num_ranks(shared)});
        at_.dims[d] = {.axes = shared};
      }
    }
  }

  void slice() {
    for (std::size_t d = 0; d < at_.dims.size(); ++d) {
      const std::optional<AxisSizes> axes = axes_beyond(at_.dims[d].axes, to_.dims[d].axes);
      if (axes && !axes->empty() &&
          std::ranges::none_of(*axes, [&](const AxisSize& axis) { return is_used(axis); })) {
        add(LocalSliceAttrs{.axes = *axes, .dim = index(d)});
        at_.dims[d] = to_.dims[d];
      }
    }
  }

  bool is_used(const AxisSize& axis) const {
    return std::ranges::any_of(at_.dims, [&](const DimLayout& dim) {
      return std::ranges::find(dim.axes, axis) != dim.axes.end();
    });
  }

  static std::int64_t index(std::size_t dim) { return static_cast<std::int64_t>(dim); }

  template <class Attrs>
  void add(Attrs attrs) {
    steps_.push_back(make_op(std::move(attrs)));
  }

  TensorType whole_;
  Layout at_;
  Layout to_;
  std::vector<OpRef> steps_;
};

}  // namespace

Graph resolve_reshards(const Graph& graph) {
  GraphEdit edit(graph);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const ReshardAttrs* reshard = reshard_of(*node.op);
    if (reshard == nullptr) {
      continue;
    }
    edit.remove(NodeId::of(i));
    const std::vector<OpRef> steps = Resharding(*reshard).steps();
    ValueId value = node.operands[0];
    for (std::size_t step = 0; step < steps.size(); ++step) {
      const ValueId result = step + 1 == steps.size() ? node.results[0] : edit.fresh();
      edit.insert(NodeId::of(i),
                  {.op = steps[step],
                   .operands = {value},
                   .results = {result},
                   .phase = node.phase,
                   .layer = node.layer,
                   .chunk = node.chunk});
      value = result;
    }
  }
  return edit.apply();
}

}  // namespace tessera
