#include "tessera/ir/graph.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera {

std::string_view name(ValueKind kind) {
  switch (kind) {
    case ValueKind::kInput:
      return "input";
    case ValueKind::kScalar:
      return "scalar";
    case ValueKind::kParameter:
      return "parameter";
    case ValueKind::kSecondary:
      return "secondary";
    case ValueKind::kGradient:
      return "gradient";
    case ValueKind::kOptimizer:
      return "optimizer";
    case ValueKind::kCache:
      return "cache";
    case ValueKind::kBuffer:
      return "buffer";
    case ValueKind::kResult:
      return "result";
  }
  return "unknown";
}

std::string_view name(Phase phase) {
  switch (phase) {
    case Phase::kStart:
      return "start";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kWeightGradient:
      return "weight_gradient";
    case Phase::kUpdate:
      return "update";
  }
  return "unknown";
}

std::string_view name(OutputKind kind) {
  switch (kind) {
    case OutputKind::kResult:
      return "result";
    case OutputKind::kLoss:
      return "loss";
    case OutputKind::kStatistic:
      return "statistic";
    case OutputKind::kGradient:
      return "gradient";
  }
  return "unknown";
}

bool is_sum(OutputKind kind) {
  return kind != OutputKind::kResult;
}

ValueKind kind_of(StateRole role) {
  switch (role) {
    case StateRole::kParameter:
      return ValueKind::kParameter;
    case StateRole::kSecondary:
      return ValueKind::kSecondary;
    case StateRole::kGradient:
    case StateRole::kSum:
      return ValueKind::kGradient;
    case StateRole::kMoment1:
    case StateRole::kMoment2:
    case StateRole::kMaster:
      return ValueKind::kOptimizer;
    case StateRole::kCache:
      return ValueKind::kCache;
    case StateRole::kBuffer:
      return ValueKind::kBuffer;
  }
  return ValueKind::kOptimizer;
}

bool is_state(ValueKind kind) {
  return kind != ValueKind::kInput && kind != ValueKind::kScalar && kind != ValueKind::kResult;
}

ValueId Graph::add_source(ValueInfo source) {
  TESSERA_CHECK(source.kind != ValueKind::kResult, "a result needs a node");
  with_context([&] { return format("{} {}", tessera::name(source.kind), source.name); },
               [&] { return source.type.num_bytes(); });
  const ValueId id = ValueId::of(values.size());
  values.push_back(std::move(source));
  return id;
}

ValueId Graph::add_input(std::string input_name, TensorType type) {
  return add_source(
      {.type = std::move(type), .kind = ValueKind::kInput, .name = std::move(input_name)});
}

ValueId Graph::add_parameter(std::string parameter_name, TensorType type, Initializer init) {
  State state{.parameter = parameter_name};
  const ValueId id = add_state(std::move(state), std::move(parameter_name), std::move(type));
  values[id.at()].init = init;
  return id;
}

ValueId Graph::add_buffer(std::string buffer_name, TensorType type, Initializer init) {
  State state{.parameter = buffer_name, .role = StateRole::kBuffer};
  const ValueId id = add_state(std::move(state), std::move(buffer_name), std::move(type));
  values[id.at()].init = init;
  return id;
}

ValueId Graph::add_state(State state, std::string state_name, TensorType type) {
  const ValueKind kind = kind_of(state.role);
  return add_source({.type = std::move(type),
                     .kind = kind,
                     .name = std::move(state_name),
                     .state = std::move(state)});
}

ValueId Graph::find_state(std::string_view parameter, StateRole role) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (is_state(values[i].kind) && values[i].state.role == role &&
        values[i].state.parameter == parameter) {
      return ValueId::of(i);
    }
  }
  return {};
}

TensorTypes Graph::types(std::span<const ValueId> ids) const {
  TensorTypes result;
  result.reserve(ids.size());
  for (const ValueId id : ids) {
    result.push_back((*this)[id].type);
  }
  return result;
}

std::vector<ValueId> Graph::sources(ValueKind kind) const {
  std::vector<ValueId> ids;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].kind == kind) {
      ids.push_back(ValueId::of(i));
    }
  }
  return ids;
}

std::vector<ValueId> Graph::trained_parameters() const {
  std::vector<ValueId> ids = sources(ValueKind::kParameter);
  std::erase_if(ids, [&](ValueId id) { return (*this)[id].frozen; });
  return ids;
}

std::vector<std::vector<NodeId>> users(const Graph& graph) {
  std::vector<std::vector<NodeId>> result(graph.values.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const ValueId operand : graph.nodes[i].operands) {
      auto& list = result[operand.at()];
      if (list.empty() || list.back() != NodeId::of(i)) {
        list.push_back(NodeId::of(i));
      }
    }
  }
  return result;
}

namespace {

bool equal_values(const ValueInfo& a, const ValueInfo& b) {
  return a.type == b.type && a.kind == b.kind && a.name == b.name && a.state == b.state &&
         a.init == b.init && a.frozen == b.frozen && a.leaves == b.leaves &&
         a.producer == b.producer && a.result_index == b.result_index;
}

bool equal_nodes(const Node& a, const Node& b) {
  return equal(*a.op, *b.op) && a.operands == b.operands && a.results == b.results &&
         a.phase == b.phase && a.layer == b.layer && a.chunk == b.chunk;
}

template <class T, class Equal>
bool equal_lists(const std::vector<T>& a, const std::vector<T>& b, Equal same) {
  if (a.size() != b.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same(a[i], b[i])) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool equal(const Graph& a, const Graph& b) {
  return a.name == b.name && equal_lists(a.values, b.values, equal_values) &&
         equal_lists(a.nodes, b.nodes, equal_nodes) && a.outputs == b.outputs;
}

}  // namespace tessera
