#include "tessera/passes/ranks/localize.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/op.h"
#include "tessera/passes/ranks/laid_out_graph.h"
#include "tessera/passes/ranks/reshard.h"

namespace tessera {
namespace {

// Who shares a value that grew: a layer's forward, or its backward, of a chunk.
using GrownUse = std::tuple<bool, std::int32_t, std::int32_t>;

GrownUse grown_use_of(const Node& node) {
  return {node.phase == Phase::kForward, node.layer, node.chunk};
}

class Localizer {
 public:
  explicit Localizer(const LaidOutGraph& laid_out)
      : laid_out_(laid_out),
        global_(laid_out.graph),
        ids_(global_.values.size()),
        homes_(laid_out.values) {
    local_.name = global_.name;
    find_homes();
  }

  Graph run() {
    for (std::size_t i = 0; i < global_.values.size(); ++i) {
      const ValueInfo& value = global_.values[i];
      if (value.kind != ValueKind::kResult) {
        ValueInfo local = value;
        local.type = local_type(value.type, laid_out_.values[i]);
        ids_[i] = local_.add_source(std::move(local));
      }
    }
    std::map<ValueId, std::vector<std::size_t>> outputs;  // by value, so that folds follow at once
    for (std::size_t i = 0; i < global_.outputs.size(); ++i) {
      outputs[global_.outputs[i].value].push_back(i);
    }
    std::vector<ValueId> contents(global_.outputs.size());
    for (std::size_t i = 0; i < global_.nodes.size(); ++i) {
      const Node& node = global_.nodes[i];
      add(i);
      for (const ValueId result : node.results) {
        for (const std::size_t output : outputs[result]) {
          contents[output] = read(result, laid_out_.outputs[output], node);
        }
      }
    }
    for (std::size_t i = 0; i < global_.outputs.size(); ++i) {
      Output output = global_.outputs[i];
      output.value = contents[i];
      if (output.updates) {
        output.updates = ids_[output.updates->at()];
      }
      local_.outputs.push_back(std::move(output));
    }
    return std::move(local_);
  }

 private:
  const Layout& made(ValueId value) const { return laid_out_.values[value.at()]; }

  // Where a partial value is folded to: cut where a reader wants it cut over the folded axes.
  void find_homes() {
    for (std::size_t i = 0; i < global_.nodes.size(); ++i) {
      for (std::size_t o = 0; o < global_.nodes[i].operands.size(); ++o) {
        widen_home(global_.nodes[i].operands[o], laid_out_.operands[i][o]);
      }
    }
    for (std::size_t i = 0; i < global_.outputs.size(); ++i) {
      widen_home(global_.outputs[i].value, laid_out_.outputs[i]);
    }
  }

  void widen_home(ValueId value, const Layout& wanted) {
    Layout& home = homes_[value.at()];
    for (std::size_t d = 0; d < home.dims.size(); ++d) {
      const std::optional<AxisSizes> finer = axes_beyond(home.dims[d].axes, wanted.dims[d].axes);
      if (finer && !finer->empty() && contains_all(home.partial, *finer)) {
        home.dims[d] = wanted.dims[d];
        std::erase_if(home.partial, [&](const AxisSize& axis) { return contains(*finer, axis); });
      }
    }
  }

  void add(std::size_t index) {
    const Node& node = global_.nodes[index];
    Node result{.op = local_op(index),
                .operands = {},
                .results = {},
                .phase = node.phase,
                .layer = node.layer,
                .chunk = node.chunk};
    for (std::size_t o = 0; o < node.operands.size(); ++o) {
      result.operands.push_back(read(node.operands[o], laid_out_.operands[index][o], node));
    }
    const TensorTypes types = infer(*result.op, local_.types(result.operands));
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      const ValueId value = node.results[i];
      const TensorType expected = local_type(global_[value].type, made(value));
      TESSERA_CHECK(types[i] == expected,
                    "{} makes {} of its parts, expected {}",
                    info(*result.op).name,
                    to_string(types[i]),
                    to_string(expected));
      ids_[value.at()] = add_result(types[i], i);
      result.results.push_back(ids_[value.at()]);
    }
    local_.nodes.push_back(std::move(result));
  }

  // The op in the form that its factors' cuts need.
  OpRef local_op(std::size_t index) const {
    const Node& node = global_.nodes[index];
    const TensorTypes types = global_.types(node.operands);
    const FactorRule rule = factors(*node.op, types);
    OpRef op = node.op;
    for (const std::string& factor : rule.rewrite) {
      if (const AxisSizes axes = axes_of_factor(rule, factor, index); !axes.empty()) {
        op = rewritten(*op, types, factor, axes);
      }
    }
    return op;
  }

  AxisSizes axes_of_factor(const FactorRule& rule,
                           const std::string& factor,
                           std::size_t index) const {
    for (std::size_t i = 0; i < rule.operands.size(); ++i) {
      if (const auto d = dim_of(rule.operands[i], factor)) {
        return laid_out_.operands[index][i].dims[*d].axes;
      }
    }
    for (std::size_t i = 0; i < rule.results.size(); ++i) {
      if (const auto d = dim_of(rule.results[i], factor)) {
        return made(global_.nodes[index].results[i]).dims[*d].axes;
      }
    }
    return {};
  }

  static std::optional<std::size_t> dim_of(const FactorRule::Factors& dims,
                                           const std::string& factor) {
    const auto found = std::ranges::find(dims, factor);
    return found == dims.end() ? std::nullopt
                               : std::optional(static_cast<std::size_t>(found - dims.begin()));
  }

  // A result of the node that is added next.
  ValueId add_result(const TensorType& type, std::size_t index) {
    local_.values.push_back({.type = type,
                             .kind = ValueKind::kResult,
                             .producer = NodeId::of(local_.nodes.size()),
                             .result_index = static_cast<std::int32_t>(index)});
    return ValueId::of(local_.values.size() - 1);
  }

  // `value` as `reader` wants it.
  ValueId read(ValueId value, const Layout& wanted, const Node& reader) {
    Layout folded = homes_[value.at()];
    folded.partial = wanted.partial;
    folded.partial_op = wanted.partial_op;
    if (made(value).partial == wanted.partial) {
      folded = made(value);
    }
    const ValueId id = resharded(value, ids_[value.at()], made(value), folded, reader);
    return resharded(value, id, folded, wanted, reader);
  }

  // `source`, which is `value` in layout `from`, in layout `to`.
  ValueId resharded(
      ValueId value, ValueId source, const Layout& from, const Layout& to, const Node& reader) {
    if (from == to) {
      return source;
    }
    const TensorType& whole = global_[value].type;
    const TensorType type = local_type(whole, to);
    const bool grows = type.num_elements() > local_[source].type.num_elements();
    const auto [found, is_new] = resharded_.try_emplace(
        {source, to_string(to, whole), grows ? std::optional(grown_use_of(reader)) : std::nullopt});
    if (is_new) {
      found->second = add_result(type, 0);
      // What does not grow belongs to its producer, and is kept in its place.
      const NodeId producer = global_[value].producer;
      const Node& owner = grows || !producer.valid() ? reader : global_.nodes[producer.at()];
      local_.nodes.push_back({.op = make_custom_op(ReshardAttrs{.type = to_string(whole),
                                                                .from = to_string(from, whole),
                                                                .to = to_string(to, whole)}),
                              .operands = {source},
                              .results = {found->second},
                              .phase = owner.phase,
                              .layer = grows || producer.valid() ? owner.layer : -1,
                              .chunk = owner.chunk});
    }
    return found->second;
  }

  using Key = std::tuple<ValueId, std::string, std::optional<GrownUse>>;

  const LaidOutGraph& laid_out_;
  const Graph& global_;
  Graph local_;
  std::vector<ValueId> ids_;   // by global value, as it is made
  std::vector<Layout> homes_;  // by global value; what is partial there too stays in no reader
  std::map<Key, ValueId> resharded_;
};

}  // namespace

Graph localize(const LaidOutGraph& laid_out) {
  return Localizer(laid_out).run();
}

}  // namespace tessera
