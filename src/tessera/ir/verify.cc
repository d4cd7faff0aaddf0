#include <cstdint>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ir/graph.h"

namespace tessera {
namespace {

void verify_sources(const Graph& graph, std::vector<bool>& defined) {
  std::unordered_set<std::string_view> names;
  std::vector<NamedState> states;
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const ValueInfo& value = graph.values[i];
    if (value.kind == ValueKind::kResult) {
      continue;
    }
    TESSERA_CHECK(!value.name.empty() && names.insert(value.name).second,
                  "value %{}: source name \"{}\" is empty or not unique",
                  i,
                  value.name);
    TESSERA_CHECK(value.type.num_bytes() >= 0, "value %{} has a negative dim", i);
    TESSERA_CHECK(!value.leaves, "value %{} leaves for backward, and is no result of forward", i);
    if (is_state(value.kind)) {
      TESSERA_CHECK(value.kind == kind_of(value.state.role),
                    "value %{} is a {} with the role of a {}",
                    i,
                    name(value.kind),
                    name(value.state.role));
      states.push_back({.name = value.name, .state = &value.state});
    }
    defined[i] = true;
  }
  verify_states(states);
}

void verify_operands(const Graph& graph, const Node& node, const std::vector<bool>& defined) {
  const OpInfo facts = info(*node.op);
  TESSERA_CHECK(static_cast<std::size_t>(facts.num_operands) == node.operands.size() &&
                    static_cast<std::size_t>(facts.num_results) == node.results.size(),
                "{} has {} operands and {} results, expected {} and {}",
                facts.name,
                node.operands.size(),
                node.results.size(),
                facts.num_operands,
                facts.num_results);
  for (const ValueId operand : node.operands) {
    TESSERA_CHECK(operand.valid() && operand.at() < graph.values.size() && defined[operand.at()],
                  "operand %{} is used before it is defined",
                  operand.index);
  }
}

void verify_results(const Graph& graph, NodeId id, std::vector<bool>& defined) {
  const Node& node = graph.nodes[id.at()];
  const TensorTypes expected = infer(*node.op, graph.types(node.operands));
  for (std::size_t r = 0; r < node.results.size(); ++r) {
    const ValueId result = node.results[r];
    TESSERA_CHECK(result.valid() && result.at() < graph.values.size() && !defined[result.at()],
                  "result %{} is defined twice",
                  result.index);
    const ValueInfo& value = graph[result];
    TESSERA_CHECK(!value.leaves || node.phase == Phase::kForward,
                  "%{} leaves for backward, and is no result of forward",
                  result.index);
    TESSERA_CHECK(value.kind == ValueKind::kResult && value.producer == id &&
                      value.result_index == static_cast<std::int32_t>(r),
                  "result %{} does not link back to its node",
                  result.index);
    TESSERA_CHECK(value.type == expected[r],
                  "result %{} is {}, the op infers {}",
                  result.index,
                  to_string(value.type),
                  to_string(expected[r]));
    TESSERA_CHECK(value.type.num_bytes() >= 0, "result %{} has a negative dim", result.index);
    defined[result.at()] = true;
  }
}

std::unordered_set<std::string_view> names_of_trained(const Graph& graph) {
  std::unordered_set<std::string_view> names;
  for (const ValueId parameter : graph.trained_parameters()) {
    names.insert(graph[parameter].state.parameter);
  }
  return names;
}

std::int32_t chunk_of(const Graph& graph, ValueId value) {
  const NodeId producer = graph[value].producer;
  return producer.valid() ? graph.nodes[producer.at()].chunk : 0;
}

// What each chunk adds to may be updated by each.
bool is_accumulator(const ValueInfo& state) {
  return state.kind == ValueKind::kGradient;
}

void verify_kinds(const Graph& graph) {
  std::set<std::tuple<std::string_view, std::int32_t, std::int32_t>> gradients;
  const std::unordered_set<std::string_view> trained = names_of_trained(graph);
  bool has_loss = false;
  for (const Output& output : graph.outputs) {
    const bool is_gradient = output.kind == OutputKind::kGradient;
    TESSERA_CHECK(!output.updates || output.kind == OutputKind::kResult,
                  "output {} updates a state and is a {}",
                  output.name,
                  name(output.kind));
    TESSERA_CHECK(is_gradient || output.parameter.empty(),
                  "output {} is a {} of parameter \"{}\", expected of none",
                  output.name,
                  name(output.kind),
                  output.parameter);
    TESSERA_CHECK(!is_gradient || trained.contains(output.parameter),
                  "output {} is a gradient of \"{}\", which is no parameter that is trained",
                  output.name,
                  output.parameter);
    TESSERA_CHECK(output.use == 0 || (is_gradient && output.use > 0),
                  "output {} is a {} of use {}, expected 0, or more of a gradient",
                  output.name,
                  name(output.kind),
                  output.use);
    TESSERA_CHECK(
        !is_gradient ||
            gradients.emplace(output.parameter, output.use, chunk_of(graph, output.value)).second,
        "output {} is a second gradient of \"{}\"{}",
        output.name,
        output.parameter,
        use_text(output.use));
    TESSERA_CHECK(output.kind != OutputKind::kLoss || !std::exchange(has_loss, true),
                  "output {} is a second loss",
                  output.name);
  }
}

void verify_outputs(const Graph& graph, const std::vector<bool>& defined) {
  std::set<std::pair<std::int32_t, std::int32_t>> updated;  // states, by chunk
  for (const Output& output : graph.outputs) {
    TESSERA_CHECK(output.value.valid() && output.value.at() < graph.values.size() &&
                      defined[output.value.at()],
                  "output {} is not defined",
                  output.name);
    if (output.updates) {
      const std::int32_t chunk =
          is_accumulator(graph[*output.updates]) ? chunk_of(graph, output.value) : 0;
      TESSERA_CHECK(updated.emplace(output.updates->index, chunk).second &&
                        graph[*output.updates].type == graph[output.value].type,
                    "output {} does not fit the state %{} that it updates",
                    output.name,
                    output.updates->index);
    }
  }
}

}  // namespace

void verify(const Graph& graph) {
  with_context([&] { return format("graph {}", graph.name); },
               [&] {
                 std::vector<bool> defined(graph.values.size(), false);
                 verify_sources(graph, defined);
                 for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
                   const Node& node = graph.nodes[i];
                   with_context([&] { return format("node {}: {}", i, to_string(*node.op)); },
                                [&] {
                                  verify_operands(graph, node, defined);
                                  verify_results(graph, NodeId::of(i), defined);
                                });
                 }
                 verify_outputs(graph, defined);
                 verify_kinds(graph);
               });
}

}  // namespace tessera
