#include "tessera/ops/norm/norm.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/norm/norm_operands.h"

namespace tessera {
namespace {

// The factors of a tensor's dims: those before the norm's, and the norm's.
struct NormFactors {
  std::string leading;
  std::string normed;
};

// "(a b z), (z)": the factors of tensors.
std::string factors_of_tensors(const NormTensors& tensors, const NormFactors& dims) {
  const std::array<std::string, 3> of_extent = {format("({} {})", dims.leading, dims.normed),
                                                format("({})", dims.normed),
                                                format("({})", dims.leading)};
  std::string text;
  for (const NormTensor& tensor : tensors) {
    text += (text.empty() ? "" : ", ") + of_extent[static_cast<std::size_t>(tensor.extent)];
  }
  return text;
}

// Dims [first, last) of a type.
TensorType part_of(const TensorType& type, std::size_t first, std::size_t last) {
  return {.dtype = type.dtype,
          .dims = {type.dims.begin() + static_cast<std::ptrdiff_t>(first),
                   type.dims.begin() + static_cast<std::ptrdiff_t>(last)}};
}

void require_operands(const NormTensors& operands, std::size_t num_dims, Types in) {
  require_float(in, 0);
  TESSERA_REQUIRE(num_dims >= 1 && num_dims <= in[0].num_dims(),
                  ErrorCode::kInvalidArgument,
                  "a norm over {} dims of {}",
                  static_cast<std::int64_t>(num_dims),
                  to_string(in[0]));
  for (std::size_t i = 1; i < operands.size(); ++i) {
    switch (operands[i].extent) {
      case NormExtent::kRows:
        require_same_shape(in, 0, i);
        break;
      case NormExtent::kColumns:
        TESSERA_REQUIRE(in[i].bounds() ==
                            part_of(in[0], in[0].num_dims() - num_dims, in[0].num_dims()).bounds(),
                        ErrorCode::kInvalidArgument,
                        "the {} is {}, expected the last dims of {}",
                        operands[i].name,
                        to_string(in[i]),
                        to_string(in[0]));
        break;
      case NormExtent::kStatistic:
        require_dtype(in, i, DType::kF32);
        TESSERA_REQUIRE(in[i].bounds() == part_of(in[0], 0, in[0].num_dims() - num_dims).bounds(),
                        ErrorCode::kInvalidArgument,
                        "operand {} is {}, expected the first dims of {}",
                        i,
                        to_string(in[i]),
                        to_string(in[0]));
        break;
    }
  }
}

double flop_per_element(const NormForm& norm) {
  constexpr double kPlain[2][3] = {{4.0, 8.0, 3.0}, {7.0, 10.0, 5.0}};
  const bool adds_terms = norm.step == NormStep::kForward && norm.residual;
  return kPlain[norm.centered ? 1 : 0][static_cast<std::size_t>(norm.step)] +
         (adds_terms ? 1.0 : 0.0) + (norm.biased ? 1.0 : 0.0) +
         (norm.weight_gradient ? (norm.centered ? 3.0 : 2.0) : 0.0);
}

// The widest row that the kernels of a GPU hold in registers; others they read again for each pass.
constexpr std::int64_t kWidestHeldRow = 8192;

// Stretches of rows that they sum side by side for the gradients of gain and bias: of rows that
// they hold along with dx, and otherwise before it. backend/cuda/kernels/ has both.
std::int64_t num_partial_sums(std::int64_t rows, std::int64_t width) {
  if (width > kWidestHeldRow) {
    const std::int64_t most = std::clamp<std::int64_t>((std::int64_t{1} << 19U) / width, 16, 512);
    return std::clamp<std::int64_t>((rows + 15) / 16, 1, most);
  }
  const bool few_registers = width > 1024 && width <= 4096;
  return std::clamp<std::int64_t>((rows + 7) / 8, 1, few_registers ? 384 : 256);
}

// How often the pass that makes y or dx has read its rows before: for the mean and for the squares
// in forward, and for what they push and pull in backward.
double passes_before(const NormForm& norm) {
  switch (norm.step) {
    case NormStep::kForward:
      return norm.centered ? 2.0 : 1.0;
    case NormStep::kBackward:
      return 1.0;
    case NormStep::kWeightGradient:
      break;
  }
  return 0.0;
}

}  // namespace

NormTensors::NormTensors(std::initializer_list<std::pair<bool, NormTensor>> tensors) {
  for (const auto& [is_present, tensor] : tensors) {
    if (is_present) {
      tensors_.at(size_++) = tensor;
    }
  }
}

NormTensors norm_operands(const NormForm& norm) {
  using Of = NormOperands;
  const bool forward = norm.step == NormStep::kForward;
  const bool backward = norm.step == NormStep::kBackward;
  return {{!forward, {&Of::dy, NormExtent::kRows}},
          {true, {&Of::x, NormExtent::kRows}},
          {forward && norm.residual, {&Of::residual, NormExtent::kRows}},
          {norm.biased, {&Of::residual_bias, NormExtent::kColumns, "residual's bias"}},
          {forward || backward, {&Of::gain, NormExtent::kColumns, "gain"}},
          {forward && norm.centered, {&Of::bias, NormExtent::kColumns, "bias"}},
          {!forward && norm.centered, {&Of::mean, NormExtent::kStatistic}},
          {!forward, {&Of::rstd, NormExtent::kStatistic}},
          {backward && norm.residual, {&Of::residual, NormExtent::kRows}}};
}

NormTensors norm_results(const NormForm& norm) {
  using Of = NormOperands;
  const bool forward = norm.step == NormStep::kForward;
  const bool weights = norm.sums_for_weights();
  return {{forward, {&Of::out, NormExtent::kRows}},
          {forward && norm.centered, {&Of::mean, NormExtent::kStatistic}},
          {forward, {&Of::rstd, NormExtent::kStatistic}},
          {forward && norm.residual, {&Of::hidden, NormExtent::kRows}},
          {norm.step == NormStep::kBackward, {&Of::out, NormExtent::kRows}},
          {weights, {&Of::gain_gradient, NormExtent::kColumns}},
          {weights && norm.centered, {&Of::bias_gradient, NormExtent::kColumns}}};
}

std::size_t norm_operand(const NormForm& norm, NormPlace place) {
  const NormTensors operands = norm_operands(norm);
  const auto found = std::ranges::find(operands, place, &NormTensor::place);
  TESSERA_CHECK(found != operands.end(), "{} lacks an operand", name(norm));
  return static_cast<std::size_t>(found - operands.begin());
}

std::size_t norm_dims(const NormForm& norm, Types in) {
  const auto of = [&](NormPlace place) { return in[norm_operand(norm, place)].num_dims(); };
  return norm.step == NormStep::kForward ? of(&NormOperands::gain)
                                         : of(&NormOperands::x) - of(&NormOperands::rstd);
}

std::size_t norm_dims(const NormForm& norm, std::span<const View> in) {
  const auto of = [&](NormPlace place) {
    return static_cast<std::size_t>(in[norm_operand(norm, place)].num_dims);
  };
  return norm.step == NormStep::kForward ? of(&NormOperands::gain)
                                         : of(&NormOperands::x) - of(&NormOperands::rstd);
}

NormOperands by_name(const NormForm& norm, const Views& views) {
  NormOperands named;
  const std::size_t num_dims = norm_dims(norm, views.in);
  const auto take = [&](const NormTensors& tensors, std::span<const View> from) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      named.*tensors[i].place = tensors[i].extent == NormExtent::kStatistic
                                    ? from[i]
                                    : from[i].with_merged(static_cast<std::int32_t>(num_dims));
    }
  };
  take(norm_operands(norm), views.in);
  take(norm_results(norm), views.out);
  return named;
}

const char* name(const NormForm& norm) {
  constexpr const char* kNames[2][3] = {
      {"rms_norm", "rms_norm_backward", "rms_norm_weight_gradient"},
      {"layer_norm", "layer_norm_backward", "layer_norm_weight_gradient"}};
  return kNames[norm.centered ? 1 : 0][static_cast<std::size_t>(norm.step)];
}

OpInfo info(const NormForm& norm) {
  const auto num_operands = static_cast<std::int32_t>(norm_operands(norm).size());
  const auto num_results = static_cast<std::int32_t>(norm_results(norm).size());
  OpInfo result{.name = name(norm),
                .num_operands = num_operands,
                .num_results = num_results + norm.float8.count()};
  if (norm.step == NormStep::kBackward) {
    result.aliases = {{.result = 0, .operand = 0}};
    if (norm.residual) {
      result.aliases.push_back({.result = 0, .operand = num_operands - 1});
    }
  } else if (norm.residual) {
    const std::int32_t hidden = num_results - 1;
    result.aliases = {{.result = hidden, .operand = 0}, {.result = hidden, .operand = 1}};
  }
  return result;
}

TensorTypes infer(const NormForm& norm, Types in) {
  TESSERA_REQUIRE(norm.residual || !norm.biased,
                  ErrorCode::kInvalidArgument,
                  "layer_norm: what is biased is the residual");
  const TensorType& x = in[norm_operand(norm, &NormOperands::x)];
  const std::size_t num_dims = norm_dims(norm, in);
  require_operands(norm_operands(norm), num_dims, in);
  TESSERA_REQUIRE(num_dims == 1 || norm.float8.count() == 0,
                  ErrorCode::kInvalidArgument,
                  "{} over {} dims makes no 8-bit floats",
                  name(norm),
                  num_dims);
  const std::size_t first = x.num_dims() - num_dims;  // as required above
  const std::array<TensorType, 3> of_extent = {
      x,
      with_dtype(part_of(x, first, x.num_dims()), DType::kF32),
      with_dtype(part_of(x, 0, first), DType::kF32)};
  TensorTypes results;
  for (const NormTensor& tensor : norm_results(norm)) {
    results.push_back(of_extent[static_cast<std::size_t>(tensor.extent)]);
  }
  append_types(norm.float8, x, results);
  return results;
}

FactorRule factors(const NormForm& norm, Types in) {
  const std::size_t num_dims = norm_dims(norm, in);
  const NormFactors dims = {.leading = factor_names(in[0].num_dims() - num_dims),
                            .normed = num_dims == 1 ? "z" : factor_names(num_dims, 'u')};
  std::string text = factors_of_tensors(norm_operands(norm), dims) + " -> " +
                     factors_of_tensors(norm_results(norm), dims);
  text += norm.sums_for_weights() ? format(" | reduce {}", factor_list(dims.leading)) : "";
  text +=
      norm.step == NormStep::kWeightGradient ? "" : format(" | whole {}", factor_list(dims.normed));
  return with_float8(norm.float8, parse_factor_rule(text), 1);
}

// Of rows that are too wide to be held, x and r are read again in forward, dy and x in backward,
// and once more where these are summed for the weights. A kernel of its own adds up partial sums.
Works work(const NormForm& norm, Types in) {
  Works works = elementwise_work(flop_per_element(norm), in, infer(norm, in));
  const TensorType& x = in[norm_operand(norm, &NormOperands::x)];
  const std::size_t first = x.num_dims() - norm_dims(norm, in);
  const std::int64_t width = x.extent(first, x.num_dims());
  const bool is_held = width <= kWidestHeldRow;
  const auto bytes = static_cast<double>(x.num_bytes());
  const bool reads_one = norm.step == NormStep::kForward && !norm.residual;
  if (!is_held) {
    works[0].bytes_again = passes_before(norm) * (reads_one ? 1.0 : 2.0) * bytes;
  }
  if (norm.sums_for_weights()) {
    const double results = norm.centered ? 2.0 : 1.0;
    const auto partials = static_cast<double>(num_partial_sums(x.extent(0, first), width) * width *
                                              static_cast<std::int64_t>(sizeof(float)));
    if (is_held || norm.step == NormStep::kWeightGradient) {
      works[0].bytes_again += results * partials;
    } else {
      works.push_back({.dtype = x.dtype, .bytes_again = 2.0 * bytes + results * partials});
    }
    works.push_back(
        {.times = norm.centered ? 2 : 1, .dtype = DType::kF32, .bytes_again = results * partials});
  }
  return works;
}

void backward(const NormForm& norm, GradBuilder& grad) {
  if (norm.step != NormStep::kForward) {
    grad.none(format("{} is itself a gradient", name(norm)));
    return;
  }
  TESSERA_CHECK(!norm.residual && norm.float8.count() == 0,
                "the fused form is made after differentiation");
  const auto dy = grad.gradient(0);
  if (!dy) {
    return;
  }
  const auto emit = [&](const OpRef& op, std::vector<Value> operands) {
    for (std::size_t statistic = 1; statistic < (norm.centered ? 3 : 2); ++statistic) {
      operands.push_back(grad.result(statistic));
    }
    return dy->builder->emit(op, operands);
  };
  if (grad.start(0)) {
    const OpRef op = norm.centered ? make_op(LayerNormBackwardAttrs{})
                                   : make_op(RmsNormBackwardAttrs{.gain_offset = norm.gain_offset});
    grad.set(0, emit(op, {*dy, grad.operand(0), grad.operand(1)})[0]);
  }
  const bool wants_bias = norm.centered && grad.start(2);
  if (grad.start(1) || wants_bias) {
    const OpRef op = norm.centered ? make_op(LayerNormWeightGradientAttrs{})
                                   : make_op(RmsNormWeightGradientAttrs{});
    const auto gradients = emit(op, {*dy, grad.operand(0)});
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      grad.set(1 + i, gradients[i]);
    }
  }
}

Value rms_norm(const Value& x, const Value& gain, double eps, double gain_offset) {
  return x.builder->emit(make_op(RmsNormAttrs{.eps = eps, .gain_offset = gain_offset}),
                         {x, gain})[0];
}

Value layer_norm(const Value& x, const Value& gain, const Value& bias, double eps) {
  return x.builder->emit(make_op(LayerNormAttrs{.eps = eps}), {x, gain, bias})[0];
}

}  // namespace tessera
