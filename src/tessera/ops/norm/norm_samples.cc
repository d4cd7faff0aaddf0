#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/norm/norm.h"
#include "tessera/ops/norm/norm_operands.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::HostTensor;
using conformance::normal;
using conformance::OpClass;
using conformance::reals;
using conformance::rows_and_columns;
using conformance::Sample;

namespace {

struct Shape {
  std::string_view name;
  std::string_view leading;  // "" or "batch=2, ": before the normalized dim
  std::int64_t channels;
  std::int64_t heads = 1;  // before the channels, where there are more than one
};

// The first shape is of layer norms, which leave nothing of one channel.
constexpr Shape kPair = {"pair", "seq=1, ", 2};
constexpr Shape kShapes[] = {{"one", "seq=1, ", 1},
                             {"vector", "", 7},
                             {"odd", "seq=3, ", 5},
                             {"even", "batch=2, seq=4, ", 38},
                             {"tall", "batch=2, seq=66, ", 17},
                             {"wide", "seq=3, ", 521},
                             {"wide_even", "seq=40, ", 1016},
                             {"wider", "seq=18, ", 1032},
                             {"wider_odd", "seq=3, ", 4095},
                             {"widest", "seq=3, ", 4104},
                             {"unheld", "seq=2, ", 8200},
                             {"heads", "batch=2, seq=5, ", 6, 3},
                             {"wide_heads", "seq=9, ", 64, 8}};

struct Case {
  Shape shape;
  DType dtype;
  std::string title;
};

// The samples that add(list, case) adds for each of them.
template <class Add>
SampleList samples_of_shapes(bool centered, const Add& add) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : kShapes) {
      const Shape& used = centered && &shape == kShapes ? kPair : shape;
      add(list, Case{used, dtype, format("{}_{}", used.name, name(dtype))});
    }
  }
  return list;
}

struct Statistics {
  double mean = 0;  // of a layer norm
  double rstd = 0;
};

Statistics statistics(std::span<const double> row, bool centered, double eps) {
  const auto count = static_cast<double>(row.size());
  Statistics result;
  for (const double element : row) {
    result.mean += centered ? element / count : 0.0;
  }
  double squares = 0;
  for (const double element : row) {
    squares += (element - result.mean) * (element - result.mean);
  }
  result.rstd = 1.0 / std::sqrt(squares / count + eps);
  return result;
}

// With few channels and a small eps, results are what almost equal terms leave: no f32 kernel has
// them.
double eps_of(std::size_t columns) {
  return columns < 4 ? 0.25 : 1e-5;
}

// Mean and rstd as the forward op leaves them.
void fill_statistics(const NormForm& norm, std::span<HostTensor> in) {
  const HostTensor& x = in[norm_operand(norm, &NormOperands::x)];
  const std::size_t rows = in[norm_operand(norm, &NormOperands::rstd)].f64().size();
  const std::size_t columns = x.f64().size() / rows;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row = x.f64().subspan(r * columns, columns);
    const Statistics of_row = statistics(row, norm.centered, eps_of(columns));
    in[norm_operand(norm, &NormOperands::rstd)].f64()[r] = of_row.rstd;
    if (norm.centered) {
      in[norm_operand(norm, &NormOperands::mean)].f64()[r] = of_row.mean;
    }
  }
}

// Of a residual form in bf16. Backward: dx is rounded before r is added. Forward: h is rounded
// before it is normalized, and the mean takes most off some.
std::vector<OpClass> rounded_classes(const NormForm& norm) {
  if (norm.step == NormStep::kBackward) {
    return {OpClass::kRoundedTerms, OpClass::kReduction, OpClass::kReduction};
  }
  const OpClass hidden = norm.biased ? OpClass::kRounded : OpClass::kElementwise;
  if (norm.centered) {
    return {OpClass::kRoundedTerms, OpClass::kRoundedTerms, OpClass::kRounded, hidden};
  }
  return {OpClass::kRounded, OpClass::kRounded, hidden};
}

// Operands of a norm, where the plain forms of layer norms have a mean that is not zero.
template <NormAttrs A>
Sample norm_sample(const A& attrs, const Case& at, std::string_view suffix = "") {
  const NormForm norm = norm_form(attrs);
  const bool forward = norm.step == NormStep::kForward;
  const std::string normed = format("{}embed={}",
                                    at.shape.heads > 1 ? format("heads={}, ", at.shape.heads) : "",
                                    at.shape.channels);
  TensorTypes of_extent = conformance::types(
      at.dtype, {format("?[{}{}]", at.shape.leading, normed), format("?[{}]", normed)});
  TensorType statistic = with_dtype(of_extent[0], DType::kF32);
  statistic.dims.resize(of_extent[0].num_dims() - of_extent[1].num_dims());
  Sample sample{.name = format("{}{}", at.title, suffix),
                .op = make_op(attrs),
                .op_class = OpClass::kReduction,
                .differentiable = forward && !norm.residual};
  for (const NormTensor& tensor : norm_operands(norm)) {
    sample.operands.push_back(tensor.extent == NormExtent::kStatistic
                                  ? statistic
                                  : of_extent[tensor.extent == NormExtent::kRows ? 0 : 1]);
  }
  if (norm.centered && !(forward && norm.residual)) {
    sample.fills.resize(norm_operand(norm, &NormOperands::x), normal());
    sample.fills.push_back(normal(1.0, 2.0));
  }
  if (!forward) {
    sample.prepare = [norm](std::span<HostTensor> in) { fill_statistics(norm, in); };
  } else if (!norm.residual) {
    sample.parameters = norm.centered ? std::vector<std::int32_t>{1, 2} : std::vector{1};
  }
  if (norm.residual && at.dtype == DType::kBF16) {
    sample.result_classes = rounded_classes(norm);
  }
  return sample;
}

}  // namespace

SampleList samples(SamplesOf<RmsNormAttrs>) {
  return samples_of_shapes(false, [](SampleList& list, const Case& at) {
    // f32 with the default eps, bf16 with a large one.
    RmsNormAttrs attrs{.eps = at.dtype == DType::kF32 ? 1e-5 : 0.25};
    list.push_back(norm_sample(attrs, at));
    attrs.residual = true;
    list.push_back(norm_sample(attrs, at, "_residual"));
    attrs.gain_offset = 1.0;
    list.push_back(norm_sample(attrs, at, "_residual_offset"));
    attrs.residual = false;
    list.push_back(norm_sample(attrs, at, "_offset"));
    attrs.residual = true;
    attrs.gain_offset = at.dtype == DType::kF32 ? 1.0 : 0.0;
    Sample fused = norm_sample(attrs, at, "_residual");
    if (at.shape.heads > 1) {
      return;
    }
    if (!at.shape.leading.empty()) {
      attrs.float8 = {.codes = true};
      Sample coded = fused;
      coded.op = make_op(attrs);
      add_codes(coded, attrs.float8, 1);
      list.push_back(std::move(coded));
    }
    fused.name += "_amax";
    attrs.float8 = {.amax = true};
    fused.op = make_op(attrs);
    if (at.dtype == DType::kBF16) {
      fused.result_classes.push_back(OpClass::kRounded);
    }
    list.push_back(std::move(fused));
  });
}

SampleList samples(SamplesOf<LayerNormAttrs>) {
  return samples_of_shapes(true, [](SampleList& list, const Case& at) {
    // f32 mostly with the default eps, bf16 with a large one.
    const auto columns = static_cast<std::size_t>(at.shape.channels);
    LayerNormAttrs attrs{.eps = at.dtype == DType::kF32 ? eps_of(columns) : 0.25};
    list.push_back(norm_sample(attrs, at));
    attrs.residual = true;
    for (const bool biased : {false, true}) {
      attrs.biased = biased;
      list.push_back(norm_sample(attrs, at, biased ? "_biased" : "_residual"));
    }
  });
}

namespace {

RmsNormBackwardAttrs backward_of_form(int form) {
  // Codes of gradients may have either dtype.
  return {.gain_offset = form % 3 == 2 ? 1.0 : 0.0,
          .residual = form % 2 == 1,
          .weight_gradient = form / 2 % 2 == 1,
          .float8 = {.amax = form / 4 == 1,
                     .codes = form / 4 == 2,
                     .dtype = form >= 8 && form % 2 == 1 ? DType::kF8E5M2 : DType::kF8E4M3}};
}

}  // namespace

SampleList samples(SamplesOf<RmsNormBackwardAttrs>) {
  return samples_of_shapes(false, [](SampleList& list, const Case& at) {
    constexpr int kForms[] = {0, 1, 2, 3, 4, 7, 8, 9, 10, 11};  // the last with codes
    const std::size_t count = at.shape.heads > 1 ? 4 : at.shape.leading.empty() ? 6 : 10;
    for (const int form : std::span(kForms).first(count)) {
      const RmsNormBackwardAttrs attrs = backward_of_form(form);
      Sample sample = norm_sample(attrs, at, format("_form{}", form));
      if (attrs.float8.codes) {
        add_codes(sample, attrs.float8, 1);
      }
      if (attrs.float8.amax && at.dtype == DType::kBF16) {
        sample.result_classes.resize(attrs.weight_gradient ? 2 : 1, OpClass::kReduction);
        sample.result_classes.push_back(OpClass::kRounded);
      }
      list.push_back(std::move(sample));
    }
  });
}

SampleList samples(SamplesOf<LayerNormBackwardAttrs>) {
  return samples_of_shapes(true, [](SampleList& list, const Case& at) {
    for (const int form : {0, 1, 2, 3}) {
      const LayerNormBackwardAttrs attrs{.residual = form % 2 == 1, .weight_gradient = form >= 2};
      const std::string residual = attrs.residual ? "_residual" : "";
      list.push_back(norm_sample(attrs, at, residual + (attrs.weight_gradient ? "_weights" : "")));
    }
  });
}

SampleList samples(SamplesOf<RmsNormWeightGradientAttrs>) {
  return samples_of_shapes(false, [](SampleList& list, const Case& at) {
    list.push_back(norm_sample(RmsNormWeightGradientAttrs{}, at));
  });
}

SampleList samples(SamplesOf<LayerNormWeightGradientAttrs>) {
  return samples_of_shapes(true, [](SampleList& list, const Case& at) {
    list.push_back(norm_sample(LayerNormWeightGradientAttrs{}, at));
  });
}

namespace {

// Those of a tensor that the norm may lack.
std::span<double> reals_of(const View& view) {
  return view.data == nullptr ? std::span<double>() : reals(view);
}

void forward_reference(const NormForm& norm, const NormOperands& of) {
  const auto [rows, columns] = rows_and_columns(of.x);
  const auto [x, gain, y, rstds] =
      std::array{reals(of.x), reals(of.gain), reals(of.out), reals(of.rstd)};
  const auto residual = reals_of(of.residual);
  const auto residual_bias = reals_of(of.residual_bias);
  const auto hidden = reals_of(of.hidden);
  const auto bias = reals_of(of.bias);
  std::vector<double> h(x.begin(), x.end());
  for (std::size_t i = 0; i < residual.size(); ++i) {
    h[i] += residual[i] + (norm.biased ? residual_bias[i % columns] : 0.0);
    hidden[i] = h[i];
  }
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row = std::span<const double>(h).subspan(r * columns, columns);
    const auto [mean, rstd] = statistics(row, norm.centered, norm.eps);
    rstds[r] = rstd;
    if (norm.centered) {
      reals(of.mean)[r] = mean;
    }
    for (std::size_t c = 0; c < columns; ++c) {
      y[r * columns + c] =
          (row[c] - mean) * rstd * (norm.gain_offset + gain[c]) + (norm.centered ? bias[c] : 0.0);
    }
  }
}

// dx = rstd (d - mean_c(d) - n mean_c(d n)), n = (x - mean) rstd, d = dy g; the means but the last
// are 0 where the norm is not centered.
void backward_reference(const NormForm& norm, const NormOperands& of) {
  const auto [rows, columns] = rows_and_columns(of.x);
  const auto [dy, x, gain, dx] =
      std::array{reals(of.dy), reals(of.x), reals(of.gain), reals(of.out)};
  const auto residual = reals_of(of.residual);
  for (std::size_t r = 0; r < rows; ++r) {
    const double rstd = reals(of.rstd)[r];
    const double mean = norm.centered ? reals(of.mean)[r] : 0.0;
    double mean_d = 0;
    double mean_dn = 0;
    for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) {
      const double d =
          dy[i] * (norm.gain_offset + gain[i % columns]) / static_cast<double>(columns);
      mean_d += norm.centered ? d : 0.0;
      mean_dn += d * (x[i] - mean) * rstd;
    }
    for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) {
      const double n = (x[i] - mean) * rstd;
      dx[i] = rstd * (dy[i] * (norm.gain_offset + gain[i % columns]) - mean_d - n * mean_dn);
      dx[i] += norm.residual ? residual[i] : 0.0;
    }
  }
}

void weight_reference(const NormForm& norm, const NormOperands& of) {
  const auto [dy, x, rstd, dgain] =
      std::array{reals(of.dy), reals(of.x), reals(of.rstd), reals(of.gain_gradient)};
  const auto mean = reals_of(of.mean);
  const auto dbias = reals_of(of.bias_gradient);
  const std::size_t columns = dgain.size();
  std::ranges::fill(dgain, 0.0);
  std::ranges::fill(dbias, 0.0);
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const double centered = x[i] - (norm.centered ? mean[i / columns] : 0.0);
    dgain[i % columns] += dy[i] * centered * rstd[i / columns];
    if (norm.centered) {
      dbias[i % columns] += dy[i];
    }
  }
}

}  // namespace

void reference(const NormForm& norm, const Views& views) {
  const NormOperands of = by_name(norm, views);
  if (norm.step == NormStep::kForward) {
    forward_reference(norm, of);
  } else if (norm.step == NormStep::kBackward) {
    backward_reference(norm, of);
  }
  if (norm.sums_for_weights()) {
    weight_reference(norm, of);
  }
  conformance::make_float8(norm.float8, of.out, views.out);
}

}  // namespace tessera
