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
    case ValueKind::kResult:
      return "result";
  }
  return "unknown";
}

std::string_view name(Phase phase) {
  switch (phase) {
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

ValueId Graph::add_source(ValueKind kind,
                          std::string value_name,
                          TensorType type,
                          Initializer init) {
  TESSERA_CHECK(kind != ValueKind::kResult, "a result needs a node");
  with_context([&] { return format("{} {}", tessera::name(kind), value_name); },
               [&] { return type.num_bytes(); });
  const ValueId id = ValueId::of(values.size());
  values.push_back(
      {.type = std::move(type), .kind = kind, .name = std::move(value_name), .init = init});
  return id;
}

ValueId Graph::find_source(std::string_view value_name) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].kind != ValueKind::kResult && values[i].name == value_name) {
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
  return a.type == b.type && a.kind == b.kind && a.name == b.name && a.init == b.init &&
         a.frozen == b.frozen && a.producer == b.producer && a.result_index == b.result_index;
}

bool equal_nodes(const Node& a, const Node& b) {
  return equal(*a.op, *b.op) && a.operands == b.operands && a.results == b.results &&
         a.phase == b.phase && a.layer == b.layer;
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
