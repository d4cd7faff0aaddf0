#include "tessera/passes/stages/assign_stages.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// By layer.
std::vector<std::int32_t> stages_of_layers(std::span<const std::int64_t> layers) {
  std::vector<std::int32_t> stages;
  for (std::size_t stage = 0; stage < layers.size(); ++stage) {
    stages.insert(
        stages.end(), static_cast<std::size_t>(layers[stage]), static_cast<std::int32_t>(stage));
  }
  return stages;
}

void require_layers(const Graph& graph, std::span<const std::int64_t> layers) {
  std::int32_t last = -1;
  for (const Node& node : graph.nodes) {
    last = std::max(last, node.layer);
  }
  const std::int64_t all = std::accumulate(layers.begin(), layers.end(), std::int64_t{0});
  TESSERA_REQUIRE(all == last + 1,
                  ErrorCode::kInvalidArgument,
                  "the stages have {} layers in all, the model {}",
                  all,
                  last + 1);
}

// What a value follows from, over however many nodes.
struct Origin {
  bool input = false;
  bool state = false;  // a parameter or another state
  bool layer = false;  // a node of a layer
  bool backward_of_layer = false;

  bool is_of_states_alone() const { return state && !input && !layer; }

  void add(const Origin& other) {
    input |= other.input;
    state |= other.state;
    layer |= other.layer;
    backward_of_layer |= other.backward_of_layer;
  }
};

// The stage of what follows from states alone, until it is known who reads it.
constexpr std::int32_t kOfReader = -2;

void follow_readers(const Graph& graph, std::vector<std::int32_t>& stages) {
  const std::vector<std::vector<NodeId>> readers = users(graph);
  for (std::size_t i = stages.size(); i-- > 0;) {
    if (stages[i] != kOfReader) {
      continue;
    }
    NodeId first;
    for (const ValueId result : graph.nodes[i].results) {
      const std::vector<NodeId>& of_result = readers[result.at()];
      if (!of_result.empty() && (!first.valid() || of_result.front() < first)) {
        first = of_result.front();
      }
    }
    stages[i] = first.valid() ? stages[first.at()] : 0;
  }
}

}  // namespace

std::vector<std::int32_t> assign_stages(const Graph& graph, std::span<const std::int64_t> layers) {
  require_layers(graph, layers);
  const std::vector<std::int32_t> stage_of_layer = stages_of_layers(layers);
  const auto last = static_cast<std::int32_t>(layers.size()) - 1;
  std::vector<Origin> origins(graph.values.size());
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    origins[i].input = graph.values[i].kind == ValueKind::kInput;
    origins[i].state = is_state(graph.values[i].kind);
  }
  std::vector<std::int32_t> stages;
  for (const Node& node : graph.nodes) {
    Origin origin;
    for (const ValueId operand : node.operands) {
      origin.add(origins[operand.at()]);
    }
    const bool is_forward = node.phase == Phase::kForward;
    if (node.layer >= 0) {
      stages.push_back(stage_of_layer[static_cast<std::size_t>(node.layer)]);
      origin.layer = true;
      origin.backward_of_layer |= !is_forward && node.phase != Phase::kStart;
    } else if (!origin.state && !origin.layer) {
      stages.push_back(kEveryStage);
    } else if (origin.is_of_states_alone()) {
      stages.push_back(kOfReader);
    } else {
      const bool is_before = is_forward ? !origin.layer : origin.backward_of_layer;
      stages.push_back(is_before ? 0 : last);
    }
    for (const ValueId result : node.results) {
      origins[result.at()] = origin;
    }
  }
  follow_readers(graph, stages);
  return stages;
}

}  // namespace tessera
