#include "tessera/passes/partition.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

const AxisSizes& axes_of_dim(const Dim& dim, const DimAxes& dims) {
  static const AxisSizes kNone;
  const auto found = dims.find(dim.name);
  return found == dims.end() ? kNone : found->second;
}

void add_axes(AxisSizes& all, const AxisSizes& more) {
  for (const AxisSize& axis : more) {
    if (std::ranges::find(all, axis) == all.end()) {
      all.push_back(axis);
    }
  }
}

AxisSizes without(const AxisSizes& axes, const AxisSizes& others) {
  AxisSizes rest;
  std::ranges::copy_if(axes, std::back_inserter(rest), [&](const AxisSize& axis) {
    return std::ranges::find(others, axis) == others.end();
  });
  return rest;
}

// How a node is cut: the axes of every factor of its rule.
class NodeCut {
 public:
  NodeCut(const Graph& graph, const Node& node, const DimAxes& dims)
      : name_(info(*node.op).name), rule_(factors(*node.op, graph.types(node.operands))) {
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      cut(rule_.operands[i], graph[node.operands[i]].type, dims);
    }
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      cut(rule_.results[i], graph[node.results[i]].type, dims);
    }
    for (const std::string& factor : rule_.whole) {
      const auto found = factors_.find(factor);
      TESSERA_REQUIRE(found == factors_.end() || found->second.axes.empty(),
                      ErrorCode::kUnsupported,
                      "{} cannot be cut along {} (over {})",
                      name_,
                      found->second.dim,
                      to_string(found->second.axes));
    }
  }

  // The axes over which result `index` is partial: of the factors that are summed over and that it
  // does not have itself.
  AxisSizes partial(std::size_t index) const {
    AxisSizes axes;
    for (const std::string& factor : rule_.reduce) {
      const FactorRule::Factors& own = rule_.results[index];
      if (const auto found = factors_.find(factor);
          found != factors_.end() && std::ranges::find(own, factor) == own.end()) {
        add_axes(axes, found->second.axes);
      }
    }
    return axes;
  }

 private:
  struct Factor {
    std::string dim;  // where it was met first
    AxisSizes axes;
  };

  void cut(const FactorRule::Factors& names, const TensorType& type, const DimAxes& dims) {
    for (std::size_t d = 0; d < names.size(); ++d) {
      const AxisSizes& axes = axes_of_dim(type.dims[d], dims);
      const auto [found, is_new] =
          factors_.try_emplace(names[d], Factor{.dim = type.dims[d].name, .axes = axes});
      TESSERA_REQUIRE(found->second.axes == axes,
                      ErrorCode::kUnsupported,
                      "{} needs {} and {} cut alike, but the plan cuts them over \"{}\" and \"{}\"",
                      name_,
                      found->second.dim,
                      type.dims[d].name,
                      to_string(found->second.axes),
                      to_string(axes));
    }
  }

  std::string name_;
  FactorRule rule_;
  std::map<std::string, Factor> factors_;
};

class Partitioner {
 public:
  Partitioner(const Graph& global, const DimAxes& dims)
      : global_(global), dims_(dims), values_(global.values.size()) {
    local_.name = global.name;
  }

  Graph run(const AxisSizes& partial) {
    for (std::size_t i = 0; i < global_.values.size(); ++i) {
      const ValueInfo& value = global_.values[i];
      if (value.kind != ValueKind::kResult) {
        values_[i].id =
            local_.add_source(value.kind, value.name, local_type(value.type, dims_), value.init);
      }
    }
    for (const Node& node : global_.nodes) {
      partition(node);
    }
    for (const Output& output : global_.outputs) {
      Output local = output;
      const Node& producer = global_.nodes[global_[output.value].producer.at()];
      local.value = folded(output.value, partial, producer);
      if (output.updates) {
        local.updates = values_[output.updates->at()].id;
      }
      local_.outputs.push_back(std::move(local));
    }
    return std::move(local_);
  }

 private:
  struct LocalValue {
    ValueId id;
    AxisSizes partial;                          // over which `id` is a part of a sum
    std::map<std::string, ValueId> folds = {};  // over the axes named, where somebody asked
  };

  LocalValue& local(ValueId value) { return values_[value.at()]; }

  void partition(const Node& node) {
    const NodeCut cut(global_, node, dims_);
    const AxisSizes kept = kept_partial(node);
    Node result{
        .op = node.op, .operands = {}, .results = {}, .phase = node.phase, .layer = node.layer};
    for (const ValueId operand : node.operands) {
      result.operands.push_back(folded(operand, kept, node));
    }
    append(std::move(result), node.results, [&](std::size_t index) {
      AxisSizes partial = kept;
      add_axes(partial, cut.partial(index));
      return partial;
    });
  }

  // A sum of parts is a part of the sum; anything else wants whole values.
  AxisSizes kept_partial(const Node& node) {
    const bool is_sum = node.op->get_if<AddAttrs>() != nullptr;
    const bool is_view = info(*node.op).view == ViewKind::kSlice;
    if (!is_sum && !is_view) {
      return {};
    }
    const AxisSizes first = local(node.operands[0]).partial;
    const bool alike = std::ranges::all_of(
        node.operands, [&](ValueId operand) { return local(operand).partial == first; });
    return alike ? first : AxisSizes();
  }

  template <class Partial>
  void append(Node node, const std::vector<ValueId>& results, const Partial& partial) {
    const NodeId id = NodeId::of(local_.nodes.size());
    const TensorTypes types = infer(*node.op, local_.types(node.operands));
    for (std::size_t i = 0; i < results.size(); ++i) {
      const TensorType expected = local_type(global_[results[i]].type, dims_);
      TESSERA_CHECK(types[i] == expected,
                    "{} makes {} of its parts, expected {}",
                    info(*node.op).name,
                    to_string(types[i]),
                    to_string(expected));
      node.results.push_back(add_result(types[i], id, i));
      local(results[i]) = {.id = node.results.back(), .partial = partial(i)};
    }
    local_.nodes.push_back(std::move(node));
  }

  ValueId add_result(const TensorType& type, NodeId producer, std::size_t index) {
    local_.values.push_back({.type = type,
                             .kind = ValueKind::kResult,
                             .producer = producer,
                             .result_index = static_cast<std::int32_t>(index)});
    return ValueId::of(local_.values.size() - 1);
  }

  // `value` as a part over no other axes than `kept`, for a reader like `reader`.
  ValueId folded(ValueId value, const AxisSizes& kept, const Node& reader) {
    LocalValue& part = local(value);
    const AxisSizes axes = without(part.partial, kept);
    if (axes.empty()) {
      return part.id;
    }
    const auto [found, is_new] = part.folds.try_emplace(to_string(axes));
    if (is_new) {
      const NodeId id = NodeId::of(local_.nodes.size());
      found->second = add_result(local_[part.id].type, id, 0);
      local_.nodes.push_back({.op = make_op(AllReduceAttrs{.axes = to_string(axes)}),
                              .operands = {part.id},
                              .results = {found->second},
                              .phase = reader.phase,
                              .layer = reader.layer});
    }
    return found->second;
  }

  const Graph& global_;
  const DimAxes& dims_;
  Graph local_;
  std::vector<LocalValue> values_;  // by global value
};

}  // namespace

AxisSizes axes_of(const TensorType& type, const DimAxes& dims) {
  AxisSizes axes;
  for (const Dim& dim : type.dims) {
    add_axes(axes, axes_of_dim(dim, dims));
  }
  return axes;
}

TensorType local_type(const TensorType& type, const DimAxes& dims) {
  TensorType local = type;
  for (Dim& dim : local.dims) {
    const AxisSizes& axes = axes_of_dim(dim, dims);
    const std::int64_t ranks = num_ranks(axes);
    TESSERA_REQUIRE(dim.bound % ranks == 0,
                    ErrorCode::kInvalidConfig,
                    "{} = {} does not divide by the {} ranks of {}",
                    dim.name,
                    dim.bound,
                    ranks,
                    to_string(axes));
    dim.bound /= ranks;
  }
  return local;
}

Graph partition(const Graph& graph, const DimAxes& dims, const AxisSizes& partial) {
  return Partitioner(graph, dims).run(partial);
}

}  // namespace tessera
