#include "tessera/passes/stages/scatter_hops.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/stages/assign_stages.h"

namespace tessera {
namespace {

class HopScatter {
 public:
  HopScatter(LaidOutGraph laid_out, const PipelineCut& cut, const AxisSizes& tensor)
      : laid_out_(std::move(laid_out)), tensor_(tensor) {
    for (const std::int32_t stage : assign_stages(graph(), cut.layers)) {
      ranks_.push_back(stage == kEveryStage ? kEveryRank
                                            : cut.rank_of_stage[static_cast<std::size_t>(stage)]);
    }
    nodes_ = std::exchange(graph().nodes, {});
  }

  LaidOutGraph run() {
    std::vector<std::vector<Layout>> operands = std::exchange(laid_out_.operands, {});
    const std::vector<bool> hops = values_that_hop();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (ValueId& operand : nodes_[i].operands) {
        const auto part = parts_.find(operand);
        if (part != parts_.end() && part->second.rank != ranks_[i]) {
          operand = part->second.value;
        }
      }
      add(nodes_[i], std::move(operands[i]));
      for (const ValueId result : nodes_[i].results) {
        if (hops[result.at()]) {
          add_part(result, i);
        }
      }
    }
    return std::move(laid_out_);
  }

 private:
  static constexpr std::int64_t kEveryRank = -1;

  struct Part {
    ValueId value;
    std::int64_t rank = 0;  // of the whole value
  };

  Graph& graph() { return laid_out_.graph; }

  // By value, whether another rank than its own reads it.
  std::vector<bool> values_that_hop() {
    std::vector<bool> hops(graph().values.size(), false);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (const ValueId operand : nodes_[i].operands) {
        const NodeId producer = graph()[operand].producer;
        if (producer.valid() && ranks_[producer.at()] != kEveryRank &&
            ranks_[producer.at()] != ranks_[i]) {
          hops[operand.at()] = true;
        }
      }
    }
    return hops;
  }

  void add(const Node& node, std::vector<Layout> operands) {
    const NodeId id = NodeId::of(graph().nodes.size());
    for (const ValueId result : node.results) {
      graph()[result].producer = id;
    }
    graph().nodes.push_back(node);
    laid_out_.operands.push_back(std::move(operands));
  }

  // The layout of a part, or none where there is no dim to cut.
  std::optional<Layout> layout_of_part(ValueId value) {
    Layout layout = laid_out_.values[value.at()];
    const auto is_cut = [&](const DimLayout& dim) {
      return std::ranges::any_of(tensor_,
                                 [&](const AxisSize& axis) { return contains(dim.axes, axis); });
    };
    if (!layout.partial.empty() || std::ranges::any_of(layout.dims, is_cut)) {
      return std::nullopt;
    }
    for (std::size_t d = 0; d < layout.dims.size(); ++d) {
      const Dim& dim = graph()[value].type.dims[d];
      if (layout.dims[d].axes.empty() && !dim.count && dim.bound % num_ranks(tensor_) == 0) {
        layout.dims[d].axes = tensor_;
        return layout;
      }
    }
    return std::nullopt;
  }

  void add_part(ValueId value, std::size_t producer) {
    std::optional<Layout> layout = layout_of_part(value);
    if (!layout) {
      return;
    }
    const ValueId part = ValueId::of(graph().values.size());
    const TensorType type = graph()[value].type;
    graph().values.push_back({.type = type});
    laid_out_.values.push_back(*layout);
    parts_[value] = {.value = part, .rank = ranks_[producer]};
    const Node& whole = nodes_[producer];
    add({.op = make_op(CastAttrs{.dtype = type.dtype}),
         .operands = {value},
         .results = {part},
         .phase = whole.phase,
         .layer = whole.layer,
         .chunk = whole.chunk},
        {std::move(*layout)});
  }

  LaidOutGraph laid_out_;
  const AxisSizes& tensor_;
  std::vector<Node> nodes_;          // as they were
  std::vector<std::int64_t> ranks_;  // by node, along the pipeline
  std::map<ValueId, Part> parts_;    // by whole value
};

}  // namespace

LaidOutGraph scatter_hops(LaidOutGraph laid_out, const PipelineCut& cut, const AxisSizes& tensor) {
  return HopScatter(std::move(laid_out), cut, tensor).run();
}

}  // namespace tessera
