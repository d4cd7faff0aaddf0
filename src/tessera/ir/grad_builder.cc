#include "tessera/ir/grad_builder.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {

GradBuilder::GradBuilder(GraphBuilder& graph,
                         const Node& node,
                         std::vector<bool> wanted,
                         std::vector<std::optional<Value>> result_gradients)
    : graph_(graph),
      operands_(node.operands),
      results_(node.results),
      wanted_(std::move(wanted)),
      result_gradients_(std::move(result_gradients)),
      operand_gradients_(node.operands.size()) {}

Value GradBuilder::operand(std::size_t index) const {
  return graph_.handle(operands_.at(index));
}

Value GradBuilder::result(std::size_t index) const {
  return graph_.handle(results_.at(index));
}

void GradBuilder::set(std::size_t index, Value gradient) {
  const TensorType& expected = operand(index).type();
  TESSERA_CHECK(gradient.type().num_elements() == expected.num_elements(),
                "gradient {} for operand {}",
                to_string(gradient.type()),
                to_string(expected));
  operand_gradients_[index] = gradient;
}

bool GradBuilder::start(std::size_t index) {
  const bool is_parameter = graph_.graph()[operands_.at(index)].kind == ValueKind::kParameter;
  graph_.set_phase(is_parameter ? Phase::kWeightGradient : Phase::kBackward);
  return wanted_[index];
}

DType GradBuilder::gradient_dtype(std::size_t index) const {
  const ValueInfo& value = graph_.graph()[operands_.at(index)];
  return value.kind == ValueKind::kParameter ? DType::kF32 : value.type.dtype;
}

void GradBuilder::none(const std::string& reason) const {
  const bool wanted = std::any_of(wanted_.begin(), wanted_.end(), [](bool w) { return w; });
  TESSERA_REQUIRE(!wanted, ErrorCode::kUnsupported, "no gradient: {}", reason);
}

}  // namespace tessera
