#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/conformance.h"
#include "tessera/ops/testing/reference_executor.h"

namespace tessera::conformance {
namespace {

// Differences taken one by one, per operand: fewer where one takes long.
constexpr std::size_t kElements = 24;
constexpr std::size_t kElementsOfLarge = 3;
constexpr std::size_t kLarge = 1000;
constexpr double kStep = 1e-4;

struct Gradient {
  HostTensor content;  // f64
  DType dtype;         // in the graph

  friend bool operator==(const Gradient&, const Gradient&) = default;
};

// The op as a one-node graph, with the gradients that arrive as sources.
class Differentiated {
 public:
  explicit Differentiated(const Sample& sample) : sample_(sample) {
    for (const HostTensor& operand : make_operands(sample)) {
      operands_.push_back(widened(operand));
    }
    const TensorTypes result_types = infer(*sample.op, sample.operands);
    for (const std::int32_t result : sample.gradient_results) {
      const TensorType& type = result_types[static_cast<std::size_t>(result)];
      if (!is_floating(type.dtype)) {
        continue;
      }
      HostTensor weight(reference_type(type));
      const std::uint64_t key =
          random_key(1000 + static_cast<std::uint64_t>(result), full_name(sample));
      (sample.arriving_gradient ? constant(*sample.arriving_gradient) : normal())(key, weight);
      weights_.emplace(static_cast<std::size_t>(result), std::move(weight));
    }
  }

  std::span<const HostTensor> operands() const { return operands_; }

  // The sum of the results' elements times the gradients that arrive.
  double loss(std::span<const HostTensor> operands) const {
    const std::vector<HostTensor> results =
        reference_results(*sample_.op, sample_.operands, operands, sample_.custom_references);
    double sum = 0;
    for (const auto& [result, weight] : weights_) {
      const std::span<const double> values = results[result].f64();
      sum = std::inner_product(values.begin(), values.end(), weight.f64().begin(), sum);
    }
    return sum;
  }

  // What backward() sets, by operand, with the gradients of `wanted` wanted; f64 content, but the
  // dtype that the graph gives it.
  std::vector<std::optional<Gradient>> gradients(const std::vector<bool>& wanted) const {
    GraphBuilder builder("conformance");
    std::map<ValueId, HostTensor> sources;
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      inputs.push_back(source(builder, i));
      sources.emplace(inputs[i].id, operands_[i]);
    }
    const std::vector<Value> results = builder.emit(sample_.op, inputs);
    std::vector<std::optional<Value>> arriving(results.size());
    for (const auto& [result, weight] : weights_) {
      const Value gradient = builder.input(format("gradient{}", result), results[result].type());
      arriving[result] = gradient;
      sources.emplace(gradient.id, weight);
    }
    builder.set_phase(Phase::kBackward);
    const Node node = builder.graph().nodes[0];  // a copy: backward() adds nodes
    GradBuilder grad(builder, node, wanted, std::move(arriving));
    backward(*sample_.op, grad);
    const std::vector<std::optional<Value>> found = grad.operand_gradients();
    const Graph graph = builder.take();
    const std::vector<HostTensor> values = run_graph(graph, sources, sample_.custom_references);
    std::vector<std::optional<Gradient>> gradients(found.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto& gradient = found[i];
      if (gradient) {
        const ValueId id = gradient->id;
        gradients[i] = Gradient{.content = values[id.at()], .dtype = graph[id].type.dtype};
      }
    }
    return gradients;
  }

  // The dtype in which the gradient of operand `index` must come.
  DType gradient_dtype(std::size_t index) const {
    return is_parameter(index) ? DType::kF32 : sample_.operands[index].dtype;
  }

 private:
  bool is_parameter(std::size_t index) const {
    return std::ranges::find(sample_.parameters, static_cast<std::int32_t>(index)) !=
           sample_.parameters.end();
  }

  Value source(GraphBuilder& builder, std::size_t index) const {
    std::string name = format("operand{}", index);
    return is_parameter(index) ? builder.parameter(std::move(name), sample_.operands[index], {})
                               : builder.input(std::move(name), sample_.operands[index]);
  }

  const Sample& sample_;
  std::vector<HostTensor> operands_;  // f64
  std::map<std::size_t, HostTensor> weights_;
};

// d loss / d step of operand `index` moved along `direction`, by a stencil of fourth order.
double slope(const Differentiated& op, std::size_t index, std::span<const double> direction) {
  const auto loss_at = [&](double step) {
    std::vector<HostTensor> moved(op.operands().begin(), op.operands().end());
    const std::span<double> elements = moved[index].f64();
    for (std::size_t i = 0; i < elements.size(); ++i) {
      elements[i] += step * direction[i];
    }
    return op.loss(moved);
  };
  return (8.0 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) /
         (12.0 * kStep);
}

// Compares a gradient along single elements (all, or some spread over the tensor) and along one
// random direction in which every element takes part.
void compare_with_differences(const Differentiated& op,
                              std::size_t index,
                              const HostTensor& gradient,
                              Failures& failures) {
  const std::span<const double> elements = gradient.f64();
  std::vector<std::vector<double>> directions;
  const std::size_t single = elements.size() < kLarge ? kElements : kElementsOfLarge;
  const std::size_t stride = elements.size() / single + 1;
  for (std::size_t i = 0; i < elements.size(); i += stride) {
    directions.emplace_back(elements.size(), 0.0)[i] = 1.0;
  }
  std::vector<float> random(elements.size());
  fill_normal(random_key(7, "direction"), 0, {}, random);
  const auto length = static_cast<float>(std::sqrt(static_cast<double>(elements.size())));
  std::ranges::for_each(random, [length](float& element) { element /= length; });
  directions.emplace_back(random.begin(), random.end());
  const TensorType vector{
      .dtype = DType::kF64,
      .dims = {{.name = "direction", .bound = static_cast<std::int64_t>(directions.size())}}};
  HostTensor found(vector);
  HostTensor expected(vector);
  for (std::size_t i = 0; i < directions.size(); ++i) {
    expected.f64()[i] = slope(op, index, directions[i]);
    found.f64()[i] =
        std::inner_product(elements.begin(), elements.end(), directions[i].begin(), 0.0);
  }
  if (const auto wrong = difference(found, expected, kFiniteDifference)) {
    failures.push_back(format("gradient of operand {} against differences: {}", index, *wrong));
  }
}

// What backward() refuses; empty if it does not.
std::string refusal(const Differentiated& op, const std::vector<bool>& wanted) {
  try {
    op.gradients(wanted);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

void check_refusal(const Differentiated& op, const std::vector<bool>& wanted, Failures& failures) {
  if (std::ranges::find(wanted, true) != wanted.end() && refusal(op, wanted).empty()) {
    failures.emplace_back("backward() gives gradients, but the sample says that it has none");
  }
}

// Each gradient wanted alone is the one that comes with all others.
void check_alone(const Differentiated& op,
                 std::size_t index,
                 const Gradient& expected,
                 Failures& failures) {
  std::vector<bool> wanted(op.operands().size(), false);
  wanted[index] = true;
  const std::optional<Gradient> alone = op.gradients(wanted)[index];
  if (!alone || *alone != expected) {
    failures.push_back(format("the gradient of operand {} differs when it is wanted alone", index));
  }
}

void check_one(const Differentiated& op,
               std::size_t index,
               const Gradient& gradient,
               Failures& failures) {
  if (gradient.dtype != op.gradient_dtype(index)) {
    failures.push_back(format("the gradient of operand {} is {}, expected {}",
                              index,
                              name(gradient.dtype),
                              name(op.gradient_dtype(index))));
  }
  compare_with_differences(op, index, gradient.content, failures);
  check_alone(op, index, gradient, failures);
}

}  // namespace

Failures check_gradient(const Sample& sample) {
  Failures failures;
  if (sample.operands.empty()) {
    return failures;  // there is nothing to have a gradient
  }
  const Differentiated op(sample);
  std::vector<bool> wanted;
  for (const TensorType& operand : sample.operands) {
    wanted.push_back(is_floating(operand.dtype));
  }
  if (!sample.differentiable) {
    check_refusal(op, wanted, failures);
    return failures;
  }
  const auto gradients = op.gradients(wanted);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const bool is_left_out =
        std::ranges::find(sample.without_gradient, static_cast<std::int32_t>(i)) !=
        sample.without_gradient.end();
    const auto& gradient = gradients[i];
    if (gradient.has_value() != (wanted[i] && !is_left_out)) {
      failures.push_back(
          format("backward() sets {} gradient for operand {}", gradient ? "a" : "no", i));
    } else if (gradient) {
      check_one(op, i, *gradient, failures);
    }
  }
  return failures;
}

}  // namespace tessera::conformance
