#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/ir/op.h"
#include "tessera/ops/custom/custom.h"
#include "tessera/ops/float8/float8_results.h"
#include "tessera/ops/testing/host_tensor.h"
#include "tessera/ops/testing/tolerance.h"

namespace tessera::conformance {

// Writes the content of one operand: a pure function of `key`. Floating operands are f64 here and
// are rounded to their dtype afterwards.
using Fill = std::function<void(std::uint64_t key, HostTensor& operand)>;

Fill normal(double std = 1.0, double mean = 0.0);
Fill uniform_between(double low, double high);
Fill constant(double value);

// Uniform i32 in [0, end).
Fill integers(std::int32_t end);

// Class labels in [0, vocab), one in `ignored_every` of them -1.
Fill labels(std::int32_t vocab, std::int32_t ignored_every = 4);

// Left at zero for the sample's prepare().
Fill prepared();

// Evaluates a custom op's reference if it is of the right type; false for any other op.
using CustomReference = std::function<bool(const CustomOp& op, const Views& views)>;

// The reference of custom op A: the overload reference(const A&, const Views&) found beside A.
template <OpAttrs A>
CustomReference custom_reference() {
  return [](const CustomOp& op, const Views& views) {
    const auto* model = dynamic_cast<const CustomModel<A>*>(op.facets.get());
    if (model == nullptr) {
      return false;
    }
    reference(model->attrs(), views);
    return true;
  };
}

// Results that another op makes of earlier ones.
struct Part {
  OpRef op;
  std::vector<std::size_t> operands;  // which results
  std::vector<std::size_t> results;
};

// One case of an op: attributes, operand types and contents, and what the checks need to know about
// it. The reference of the op computes the results of all operands in f64, naively.
struct Sample {
  std::string name;  // within the op: letters, digits and '_'
  OpRef op;
  TensorTypes operands = {};
  std::vector<Fill> fills = {};  // of each operand; what is missing at the end is normal()

  // Fills operands that depend on others (a backward op's rstd, lse, ...), in f64, after `fills`.
  std::function<void(std::span<HostTensor> operands)> prepare = nullptr;

  OpClass op_class = OpClass::kElementwise;
  std::vector<OpClass> result_classes = {};  // of each result where they differ from op_class
  std::vector<OpClass> device_classes = {};  // the same of kernels of a device, where those differ

  // What is held to other ops' CPU kernels, bitwise, and not to the reference: of values that were
  // rounded, a scale may be another one.
  std::vector<Part> parts = {};

  // Maps an integer result to what is compared with the reference (an encoded sum, say).
  std::function<HostTensor(const HostTensor&)> decode = nullptr;

  // Gradients: those that arrive (result indices), and whether every floating operand has one. If
  // not, backward() must refuse to give one.
  bool differentiable = true;
  std::vector<std::int32_t> gradient_results = {0};
  std::vector<std::int32_t> without_gradient = {};  // floating operands that backward leaves out

  std::vector<std::int32_t> parameters = {};  // operands that are weights: gradients in f32

  // The gradient that arrives is this constant, not random numbers (an op that has it as operand).
  std::optional<double> arriving_gradient = std::nullopt;

  // Shards: operands that are added to a sum, hence zero in all shards but the first where the sum
  // is split and they are not; factors whose dims have several bounds (heads and groups of heads);
  // and factors that these checks do not split, with the reason.
  std::vector<std::int32_t> addends = {};
  std::vector<std::string> grouped_factors = {};
  std::vector<std::pair<std::string, std::string>> unsplit = {};

  // The dim along which operands and results with as many dims as operand 0 may be slices of larger
  // tensors; -1: the kernel need not take slices.
  std::int32_t sliced_dim = -1;

  std::vector<CustomReference> custom_references = {};
};

// The classes of `results` results and the largest magnitude of each, which is of rounded ones.
inline std::vector<OpClass> amax_classes(DType dtype, std::size_t results) {
  std::vector<OpClass> classes(2 * results, OpClass::kElementwise);
  if (dtype == DType::kBF16) {
    std::fill_n(classes.begin() + static_cast<std::ptrdiff_t>(results), results, OpClass::kRounded);
  }
  return classes;
}

// The sample of a fused form whose `count` results have codes of their rows, the last results, as
// `float8` asks for them.
void add_codes(Sample& sample, const Float8Results& float8, std::size_t count);

// One type a text, '?' standing for `dtype`: types(DType::kF32, {"?[seq=3, embed=8]",
// "i32[seq=3]"}).
TensorTypes types(DType dtype, std::initializer_list<std::string_view> texts);

// "rms_norm.odd_bf16": the op's name and the sample's.
std::string full_name(const Sample& sample);

// The operands in their own dtypes. Two calls give the same bits; each `draw` gives others.
std::vector<HostTensor> make_operands(const Sample& sample, std::uint64_t draw = 0);

}  // namespace tessera::conformance
