#include "tessera/passes/stages/tied_parameters.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "tessera/passes/ranks/shard_parameters.h"
#include "tessera/passes/stages/assign_stages.h"
#include "tessera/passes/stages/cut_stages.h"

namespace tessera {
namespace {

class Ties {
 public:
  Ties(const Graph& graph, const PipelineCut& cut, const StateAxes& state, const DimAxes& dims)
      : graph_(graph),
        cut_(cut),
        state_(state),
        dims_(dims),
        stages_(assign_stages(graph, cut.layers)),
        readers_(users(graph)) {}

  std::vector<TiedParameter> run() const {
    std::vector<TiedParameter> tied;
    for (const ValueId parameter : graph_.sources(ValueKind::kParameter)) {
      if (readers_[parameter.at()].empty()) {
        continue;
      }
      TiedParameter found = describe(parameter);
      const bool is_apart = std::ranges::any_of(
          found.ranks_of_uses, [&](std::int64_t rank) { return rank != found.owner; });
      if (is_apart || !found.readers.empty()) {
        tied.push_back(std::move(found));
      }
    }
    return tied;
  }

 private:
  std::int64_t rank_of(NodeId node) const {
    return cut_.rank_of_stage[static_cast<std::size_t>(stages_[node.at()])];
  }

  TiedParameter describe(ValueId parameter) const {
    const std::vector<NodeId>& readers = readers_[parameter.at()];
    TiedParameter tied = {.name = graph_[parameter].name,
                          .frozen = graph_[parameter].frozen,
                          .owner = rank_of(readers.front()),
                          .readers = {},
                          .ranks_of_uses = {},
                          .gradient = {}};
    const StateAxes own = state_axes_of(graph_[parameter].type, dims_, state_);
    for (const NodeId reader : readers) {
      if (const std::int64_t rank = rank_of(reader); rank != tied.owner) {
        TiedReads& reads = tied.readers[rank];
        (reads_secondary(own, graph_.nodes[reader.at()]) ? reads.secondary : reads.slices) = true;
      }
    }
    for (const Output& output : graph_.outputs) {
      // Those of another slice are made where the first one's are.
      if (output.kind == OutputKind::kGradient && output.parameter == tied.name &&
          std::ssize(tied.ranks_of_uses) == output.use) {
        tied.ranks_of_uses.push_back(rank_of(graph_[output.value].producer));
        tied.gradient = graph_[output.value].type;
      }
    }
    return tied;
  }

  const Graph& graph_;
  const PipelineCut& cut_;
  const StateAxes& state_;
  const DimAxes& dims_;
  std::vector<std::int32_t> stages_;          // by node
  std::vector<std::vector<NodeId>> readers_;  // by value
};

}  // namespace

bool TiedParameters::is_copied(std::string_view parameter, std::int64_t rank) const {
  return std::ranges::any_of(parameters, [&](const TiedParameter& tied) {
    return tied.name == parameter && tied.owner != rank;
  });
}

TiedParameters tied_parameters(const Graph& graph,
                               const PipelineCut& cut,
                               const StateAxes& state,
                               const DimAxes& dims) {
  const std::int64_t num_boundaries = std::ssize(cut.layers) - 1;
  return {.axes = cut.axes,
          .gradient_channel = 2 * num_boundaries,
          .weight_channel = 2 * num_boundaries + 1,
          .parameters = Ties(graph, cut, state, dims).run()};
}

}  // namespace tessera
