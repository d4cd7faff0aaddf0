#include "tessera/passes/ranks/propagate_layouts.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/ranks/laid_out_graph.h"

namespace tessera {
namespace {

bool overlap(const AxisSizes& a, const AxisSizes& b) {
  return std::ranges::any_of(a, [&](const AxisSize& axis) { return contains(b, axis); });
}

void add_axes(AxisSizes& all, const AxisSizes& more) {
  std::ranges::copy_if(
      more, std::back_inserter(all), [&](const AxisSize& axis) { return !contains(all, axis); });
}

bool contains(const FactorRule::Factors& factors, const std::string& factor) {
  return std::ranges::find(factors, factor) != factors.end();
}

// The axes of every factor of a node that is cut.
using Cuts = std::map<std::string, AxisSizes>;

// The axes of a dim that both of its cuts cut.
AxisSizes all_axes(const DimCut& cut) {
  AxisSizes axes = cut.axes;
  axes.insert(axes.end(), cut.weak.begin(), cut.weak.end());
  return axes;
}

bool is_free(const Cuts& cuts, const AxisSizes& axes) {
  return std::ranges::none_of(cuts, [&](const auto& cut) { return overlap(cut.second, axes); });
}

// A dim of a node's operand or result.
struct DimPlace {
  bool is_operand = true;
  std::size_t dim = 0;
  ValueId value;
};

// Calls body(factor, place) for every dim of the node's operands, then of its results.
template <class Body>
void for_each_dim(const Node& node, const FactorRule& rule, const Body& body) {
  for (const bool is_operand : {true, false}) {
    const auto& groups = is_operand ? rule.operands : rule.results;
    for (std::size_t t = 0; t < groups.size(); ++t) {
      const ValueId value = (is_operand ? node.operands : node.results)[t];
      for (std::size_t d = 0; d < groups[t].size(); ++d) {
        body(groups[t][d], DimPlace{.is_operand = is_operand, .dim = d, .value = value});
      }
    }
  }
}

// Gradients are sums over the axes of `partial`: work that all of their ranks repeat would count
// often. A factor may be whole where another one divides the work, as a weight is that has its
// parts along the axes of the batch.
void require_divided(const std::string& factor,
                     const AxisSizes& axes,
                     const Cuts& cuts,
                     const AxisSizes& partial) {
  const bool repeats = std::ranges::any_of(
      axes, [&](const AxisSize& axis) { return contains(partial, axis) && is_free(cuts, {axis}); });
  TESSERA_REQUIRE(!repeats,
                  ErrorCode::kUnsupported,
                  "factor {} is cut over {}, and the op cannot be",
                  factor,
                  to_string(axes));
}

// A factor and axes that names say and that do not cut it.
using Refused = std::vector<std::pair<std::string, AxisSizes>>;

// Factors whose dims are named for the same axes in all operands and results.
Cuts named_cuts(const Node& node,
                const FactorRule& rule,
                std::span<const Layout> named,
                Refused& refused) {
  std::vector<std::pair<std::string, AxisSizes>> met;  // in order of first use
  std::set<std::string> whole(rule.whole.begin(), rule.whole.end());
  for_each_dim(node, rule, [&](const std::string& factor, const DimPlace& place) {
    const AxisSizes& axes = named[place.value.at()].dims[place.dim].axes;
    const auto found = std::ranges::find(met, factor, &std::pair<std::string, AxisSizes>::first);
    if (found == met.end()) {
      met.emplace_back(factor, axes);
    } else if (found->second != axes) {
      whole.insert(factor);
      refused.emplace_back(factor, found->second);
    }
    if (whole.contains(factor)) {
      refused.emplace_back(factor, axes);
    }
  });
  Cuts cuts;
  for (const auto& [factor, axes] : met) {
    if (!axes.empty() && !whole.contains(factor) && is_free(cuts, axes)) {
      cuts[factor] = axes;
    }
  }
  return cuts;
}

// Adds the axes of those of `factors` that are cut and that the result has not; whether there are
// any.
bool add_partial(const FactorRule::Factors& factors,
                 const FactorRule::Factors& result,
                 const Cuts& cuts,
                 AxisSizes& partial) {
  for (const std::string& factor : factors) {
    if (const auto found = cuts.find(factor); found != cuts.end() && !contains(result, factor)) {
      add_axes(partial, found->second);
    }
  }
  return !partial.empty();
}

Layout cut_layout(const FactorRule::Factors& names, const TensorType& type, const Cuts& cuts) {
  Layout layout = whole_layout(type);
  for (std::size_t d = 0; d < names.size(); ++d) {
    if (const auto found = cuts.find(names[d]); found != cuts.end()) {
      layout.dims[d] = {.axes = found->second,
                        .padding = padding_of(type.dims[d].bound, found->second)};
    }
  }
  return layout;
}

// An output lies as its dims' names say, like the parameter whose gradient it is. Sums over the
// labels of one rank stay so, except along axes that cut the parameter: each rank there has its
// part of the whole sum. A loss and a statistic are cut along none of `partial`. `made` is how the
// value lies as it is made.
Layout output_layout(const Output& output,
                     const TensorType& type,
                     const Layout& made,
                     const DimAxes& dims,
                     const AxisSizes& partial) {
  Layout result = layout_of(type, dims);
  if (!is_sum(output.kind)) {
    return result;
  }
  AxisSizes cut;
  if (output.kind == OutputKind::kGradient) {
    cut = axes_of(type, dims);
  } else {
    for (DimLayout& dim : result.dims) {
      dim = overlap(dim.axes, partial) ? DimLayout() : dim;
    }
  }
  for (const AxisSize& axis : made.partial) {
    if (contains(partial, axis) && !contains(cut, axis)) {
      result.partial.push_back(axis);
    }
  }
  for (const AxisSize& axis : partial) {
    TESSERA_REQUIRE(contains(result.partial, axis) || contains(cut, axis),
                    ErrorCode::kUnsupported,
                    "output {} is no sum over the ranks of {}: none of its operands is cut over "
                    "them",
                    output.name,
                    axis.name);
  }
  return result;
}

class Propagation {
 public:
  Propagation(Graph graph, const DimAxes& dims, const AxisSizes& partial)
      : dims_(dims), partial_(partial), users_(users(graph)) {
    laid_out_.graph = std::move(graph);
    for (const Node& node : this->graph().nodes) {
      rules_.push_back(factors(*node.op, this->graph().types(node.operands)));
    }
    demanded_.resize(rules_.size());
  }

  LaidOutGraph run() {
    const Graph& graph = this->graph();
    for (const ValueInfo& value : graph.values) {
      laid_out_.values.push_back(layout_of(value.type, dims_));
    }
    named_ = laid_out_.values;
    laid_out_.operands.resize(graph.nodes.size());
    // What readers demand of a value may reach further back each time; it only grows.
    do {
      for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
        with_context([&] { return format("node {}: {}", i, to_string(*graph.nodes[i].op)); },
                     [&] { lay_out(i); });
      }
    } while (demand());
    for (const Output& output : graph.outputs) {
      laid_out_.outputs.push_back(
          output_layout(output, graph[output.value].type, layout(output.value), dims_, partial_));
    }
    return std::move(laid_out_);
  }

 private:
  const Graph& graph() const { return laid_out_.graph; }

  const Layout& layout(ValueId value) const { return laid_out_.values[value.at()]; }

  void lay_out(std::size_t index) {
    const Node& node = graph().nodes[index];
    const FactorRule& rule = rules_[index];
    Refused refused;
    Cuts cuts = named_cuts(node, rule, named_, refused);
    // A cut factor's sums are folded on the way: into parts, not into the whole.
    AxisSizes kept = kept_partial(node);
    std::erase_if(kept, [&](const AxisSize& axis) { return !is_free(cuts, {axis}); });
    add_weak_cuts(index, kept, cuts);
    for (const auto& [factor, axes] : refused) {
      require_divided(factor, axes, cuts, partial_);
    }
    std::vector<Layout>& operands = laid_out_.operands[index];
    operands.clear();
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      operands.push_back(cut_layout(rule.operands[i], graph()[node.operands[i]].type, cuts));
      std::ranges::copy_if(layout(node.operands[i]).partial,
                           std::back_inserter(operands.back().partial),
                           [&](const AxisSize& axis) { return contains(kept, axis); });
    }
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      Layout result = cut_layout(rule.results[i], graph()[node.results[i]].type, cuts);
      result.partial = kept;
      add_partial(rule.reduce, rule.results[i], cuts, result.partial);
      if (AxisSizes maxima; add_partial(rule.max, rule.results[i], cuts, maxima)) {
        TESSERA_CHECK(result.partial.empty(), "a result is both a partial sum and a maximum");
        result.partial = std::move(maxima);
        result.partial_op = PartialOp::kMax;
      }
      laid_out_.values[node.results[i].at()] = std::move(result);
    }
  }

  // The axes over which a node may work on parts: a sum of parts is a part of the sum, and so is a
  // view of one. Values that others read too are folded anyway, except over the axes of `partial`.
  AxisSizes kept_partial(const Node& node) const {
    const bool is_sum = node.op->get_if<AddAttrs>() != nullptr;
    const bool is_view = info(*node.op).view == ViewKind::kSlice;
    AxisSizes kept;
    if (!is_sum && !is_view) {
      return kept;
    }
    const bool is_only_reader = std::ranges::all_of(node.operands, [&](ValueId operand) {
      return users_[operand.at()].size() == 1 && !is_output(operand);
    });
    for (const AxisSize& axis : layout(node.operands[0]).partial) {
      if ((is_only_reader || contains(partial_, axis)) &&
          std::ranges::all_of(node.operands, [&](ValueId operand) {
            return contains(layout(operand).partial, axis);
          })) {
        kept.push_back(axis);
      }
    }
    return kept;
  }

  bool is_output(ValueId value) const {
    return std::ranges::find(graph().outputs, value, &Output::value) != graph().outputs.end();
  }

  void add_weak_cuts(std::size_t index, const AxisSizes& kept, Cuts& cuts) const {
    for_each_dim(
        graph().nodes[index], rules_[index], [&](const std::string& factor, const DimPlace& place) {
          const DimCut* cut = weak_cut(place);
          if (cut == nullptr || !may_cut_weakly(index, factor, *cut, kept, cuts)) {
            return;
          }
          if (contains(rules_[index].divide, factor) || demanded_[index].contains(factor) ||
              is_supplied(place, *cut)) {
            cuts[factor] = all_axes(*cut);
          }
        });
  }

  // Null where the dim has none.
  const DimCut* weak_cut(const DimPlace& place) const {
    const auto found = dims_.find(graph()[place.value].type.dims[place.dim].name);
    return found == dims_.end() || found->second.weak.empty() ? nullptr : &found->second;
  }

  bool may_cut_weakly(std::size_t index,
                      const std::string& factor,
                      const DimCut& cut,
                      const AxisSizes& kept,
                      const Cuts& cuts) const {
    const FactorRule& rule = rules_[index];
    if (contains(rule.whole, factor) || contains(rule.rewrite, factor) || overlap(kept, cut.weak) ||
        !is_free(cuts, cut.weak)) {
      return false;
    }
    // It cuts the parts that the other axes make.
    const auto strong = cuts.find(factor);
    if ((strong == cuts.end() ? AxisSizes() : strong->second) != cut.axes) {
      return false;
    }
    bool fits = true;
    for_each_dim(
        graph().nodes[index], rules_[index], [&](const std::string& other, const DimPlace& place) {
          const Dim& dim = graph()[place.value].type.dims[place.dim];
          fits = fits && (other != factor ||
                          (!dim.count && (cut.pads || padding_of(dim.bound, all_axes(cut)) == 0)));
        });
    return fits;
  }

  // Whether an operand lies so already, or is a sum that may be folded so.
  bool is_supplied(const DimPlace& place, const DimCut& cut) const {
    const AxisSizes& axes = layout(place.value).dims[place.dim].axes;
    return place.is_operand &&
           (axes == all_axes(cut) ||
            (axes == cut.axes && contains_all(layout(place.value).partial, cut.weak)));
  }

  // Asks nodes whose results are whole and all read in a weak cut to make them so; whether any of
  // them had not been asked.
  bool demand() {
    bool is_more = false;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      std::map<std::string, bool> wanted;  // by factor: all results that have it
      for_each_dim(
          graph().nodes[i], rules_[i], [&](const std::string& factor, const DimPlace& place) {
            const DimCut* cut = place.is_operand ? nullptr : weak_cut(place);
            if (cut != nullptr) {
              const bool is_cut = all_cut(place, *cut);
              const auto [found, is_new] = wanted.try_emplace(factor, is_cut);
              found->second = found->second && is_cut;
            }
          });
      for (const auto& [factor, is_wanted] : wanted) {
        is_more = (is_wanted && demanded_[i].insert(factor).second) || is_more;
      }
    }
    return is_more;
  }

  // Whether the result is read, and everywhere cut weakly along its dim, along which it is not.
  bool all_cut(const DimPlace& place, const DimCut& weak) const {
    const std::vector<NodeId>& readers = users_[place.value.at()];
    if (layout(place.value).dims[place.dim].axes != weak.axes || readers.empty() ||
        is_output(place.value)) {
      return false;
    }
    const AxisSizes axes = all_axes(weak);
    return std::ranges::all_of(readers, [&](NodeId reader) {
      const std::vector<ValueId>& operands = graph().nodes[reader.at()].operands;
      bool cut = true;
      for (std::size_t o = 0; o < operands.size(); ++o) {
        cut = cut && (operands[o] != place.value ||
                      laid_out_.operands[reader.at()][o].dims[place.dim].axes == axes);
      }
      return cut;
    });
  }

  const DimAxes& dims_;
  const AxisSizes& partial_;
  std::vector<std::vector<NodeId>> users_;
  LaidOutGraph laid_out_;
  std::vector<Layout> named_;                    // by value: as the names of its dims say
  std::vector<FactorRule> rules_;                // by node
  std::vector<std::set<std::string>> demanded_;  // by node: factors to cut weakly
};

}  // namespace

LaidOutGraph propagate_layouts(Graph graph, const DimAxes& dims, const AxisSizes& partial) {
  return Propagation(std::move(graph), dims, partial).run();
}

}  // namespace tessera
