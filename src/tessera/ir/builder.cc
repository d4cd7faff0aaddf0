#include "tessera/ir/builder.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera {

const TensorType& Value::type() const {
  return builder->graph()[id].type;
}

std::int64_t Value::size(int index) const {
  const auto& dims = type().dims;
  const int count = static_cast<int>(dims.size());
  const int position = index < 0 ? index + count : index;
  TESSERA_REQUIRE(position >= 0 && position < count,
                  ErrorCode::kInvalidArgument,
                  "dim {} of {}: it has {} dims",
                  index,
                  to_string(type()),
                  count);
  return dims[static_cast<std::size_t>(position)].bound;
}

Value GraphBuilder::input(std::string name, TensorType type) {
  return handle(graph_.add_input(std::move(name), std::move(type)));
}

Value GraphBuilder::scalar(std::string name, DType dtype) {
  return handle(graph_.add_source(
      {.type = {.dtype = dtype, .dims = {}}, .kind = ValueKind::kScalar, .name = std::move(name)}));
}

Value GraphBuilder::parameter(std::string name, TensorType type, Initializer init) {
  return handle(graph_.add_parameter(std::move(name), std::move(type), init));
}

Value GraphBuilder::buffer(std::string name, TensorType type, Initializer init) {
  return handle(graph_.add_buffer(std::move(name), std::move(type), init));
}

Value GraphBuilder::state(State state, std::string name, TensorType type) {
  return handle(graph_.add_state(std::move(state), std::move(name), std::move(type)));
}

void GraphBuilder::output(std::string name, Value value, OutputKind kind) {
  graph_.outputs.push_back({.name = std::move(name), .value = value.id, .kind = kind});
}

void GraphBuilder::gradient(std::string name,
                            std::string parameter,
                            Value value,
                            std::int32_t use) {
  graph_.outputs.push_back({.name = std::move(name),
                            .value = value.id,
                            .kind = OutputKind::kGradient,
                            .parameter = std::move(parameter),
                            .use = use});
}

void GraphBuilder::update(Value state, Value content) {
  graph_.outputs.push_back(
      {.name = graph_[state.id].name, .value = content.id, .updates = state.id});
}

std::vector<Value> GraphBuilder::emit(OpRef op, std::span<const Value> operands) {
  std::vector<ValueId> ids;
  ids.reserve(operands.size());
  for (const Value& operand : operands) {
    TESSERA_REQUIRE(operand.builder == this,
                    ErrorCode::kInvalidArgument,
                    "an operand of {} belongs to another graph",
                    to_string(*op));
    ids.push_back(operand.id);
  }
  const OpInfo facts = info(*op);
  TESSERA_REQUIRE(static_cast<std::size_t>(facts.num_operands) == ids.size(),
                  ErrorCode::kInvalidArgument,
                  "{} takes {} operands, found {}",
                  facts.name,
                  facts.num_operands,
                  ids.size());
  const TensorTypes operand_types = graph_.types(ids);
  TensorTypes result_types = with_context([&] { return format("op {}", to_string(*op)); },
                                          [&] { return infer(*op, operand_types); });
  const NodeId node = NodeId::of(graph_.nodes.size());
  std::vector<Value> results;
  std::vector<ValueId> result_ids;
  for (TensorType& type : result_types) {
    const ValueId id = ValueId::of(graph_.values.size());
    graph_.values.push_back({.type = std::move(type),
                             .producer = node,
                             .result_index = static_cast<std::int32_t>(results.size())});
    result_ids.push_back(id);
    results.push_back(handle(id));
  }
  graph_.nodes.push_back({.op = std::move(op),
                          .operands = std::move(ids),
                          .results = std::move(result_ids),
                          .phase = phase_,
                          .layer = layer_,
                          .chunk = chunk_});
  return results;
}

std::vector<Value> GraphBuilder::emit(OpRef op, std::initializer_list<Value> operands) {
  return emit(std::move(op), std::span<const Value>(operands.begin(), operands.size()));
}

Graph GraphBuilder::take() {
  verify(graph_);
  return std::move(graph_);
}

}  // namespace tessera
