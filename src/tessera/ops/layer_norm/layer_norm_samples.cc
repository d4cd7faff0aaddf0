#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/layer_norm/layer_norm.h"
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
};

constexpr Shape kShapes[] = {{"pair", "seq=1, ", 2},
                             {"vector", "", 7},
                             {"odd", "seq=3, ", 5},
                             {"even", "batch=2, seq=4, ", 38},
                             {"tall", "batch=2, seq=66, ", 17},
                             {"wide", "seq=3, ", 521},
                             {"wide_even", "seq=40, ", 1016},
                             {"wider", "seq=18, ", 1032},
                             {"wider_odd", "seq=3, ", 4095},
                             {"widest", "seq=3, ", 4104},
                             {"unheld", "seq=2, ", 8200}};

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

// The types of x, of the vector along its last dim, and of a statistic of its rows.
struct ShapeTypes {
  TensorType x;
  TensorType channel;
  TensorType statistic;
};

ShapeTypes types_of(const Shape& shape, DType dtype) {
  const TensorTypes types =
      conformance::types(dtype,
                         {format("?[{}embed={}]", shape.leading, shape.channels),
                          format("?[embed={}]", shape.channels)});
  return {types[0], types[1], with_dtype(without_last(types[0]), DType::kF32)};
}

struct Statistics {
  double mean = 0;
  double rstd = 0;
};

Statistics statistics(std::span<const double> row, double eps) {
  const auto count = static_cast<double>(row.size());
  Statistics result;
  for (const double element : row) {
    result.mean += element / count;
  }
  double variance = 0;
  for (const double element : row) {
    variance += (element - result.mean) * (element - result.mean) / count;
  }
  result.rstd = 1.0 / std::sqrt(variance + eps);
  return result;
}

// With few channels and a small eps results are what almost equal terms leave: no f32 kernel has
// them.
template <class Integer>
double eps_of(Integer columns) {
  return columns < 4 ? 0.25 : 1e-5;
}

// Mean and rstd of x as the forward op leaves them.
void fill_statistics(const HostTensor& x, HostTensor& mean, HostTensor& rstd) {
  const auto [rows, columns] = rows_and_columns(x.view());
  for (std::size_t r = 0; r < rows; ++r) {
    const Statistics row = statistics(x.f64().subspan(r * columns, columns), eps_of(columns));
    mean.f64()[r] = row.mean;
    rstd.f64()[r] = row.rstd;
  }
}

}  // namespace

namespace {

Sample residual_sample(const Shape& shape, DType dtype, bool biased) {
  const auto [x, channel, statistic] = types_of(shape, dtype);
  const LayerNormAttrs attrs{.eps = dtype == DType::kF32 ? eps_of(shape.channels) : 0.25,
                             .residual = true,
                             .biased = biased};
  Sample sample{.name = format("{}_{}_{}", shape.name, name(dtype), biased ? "biased" : "residual"),
                .op = make_op(attrs),
                .operands = {x, x, channel, channel},
                .op_class = OpClass::kReduction,
                .differentiable = false};
  if (biased) {
    sample.operands.push_back(channel);
  }
  if (dtype == DType::kBF16) {  // h is rounded before it is normalized, which takes most off some
    sample.result_classes = {OpClass::kRoundedTerms,
                             OpClass::kRoundedTerms,
                             OpClass::kRounded,
                             biased ? OpClass::kRounded : OpClass::kElementwise};
  }
  return sample;
}

}  // namespace

SampleList samples(SamplesOf<LayerNormAttrs>) {
  SampleList list;
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : kShapes) {
      const auto [x, channel, statistic] = types_of(shape, dtype);
      // f32 mostly with the default eps, bf16 with a large one; a mean that is not zero.
      list.push_back({.name = format("{}_{}", shape.name, name(dtype)),
                      .op = make_op(LayerNormAttrs{
                          .eps = dtype == DType::kF32 ? eps_of(shape.channels) : 0.25}),
                      .operands = {x, channel, channel},
                      .fills = {normal(1.0, 2.0)},
                      .op_class = OpClass::kReduction,
                      .parameters = {1, 2}});
      for (const bool biased : {false, true}) {
        list.push_back(residual_sample(shape, dtype, biased));
      }
    }
  }
  return list;
}

namespace {

Sample backward_sample(const Shape& shape, DType dtype, const LayerNormBackwardAttrs& attrs) {
  const auto [x, channel, statistic] = types_of(shape, dtype);
  Sample sample{.name = format("{}_{}{}{}",
                               shape.name,
                               name(dtype),
                               attrs.residual ? "_residual" : "",
                               attrs.weight_gradient ? "_weights" : ""),
                .op = make_op(attrs),
                .operands = {x, x, channel, statistic, statistic},
                .fills = {normal(), normal(1.0, 2.0)},
                .prepare = [](std::span<HostTensor> in) { fill_statistics(in[1], in[3], in[4]); },
                .op_class = OpClass::kReduction,
                .differentiable = false};
  if (attrs.residual) {
    sample.operands.push_back(x);
  }
  if (attrs.residual && dtype == DType::kBF16) {  // dx is rounded before r is added
    sample.result_classes = {OpClass::kRoundedTerms, OpClass::kReduction, OpClass::kReduction};
  }
  return sample;
}

}  // namespace

SampleList samples(SamplesOf<LayerNormBackwardAttrs>) {
  SampleList list;
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : kShapes) {
      for (const int form : {0, 1, 2, 3}) {
        list.push_back(backward_sample(
            shape, dtype, {.residual = form % 2 == 1, .weight_gradient = form >= 2}));
      }
    }
  }
  return list;
}

SampleList samples(SamplesOf<LayerNormWeightGradientAttrs>) {
  SampleList list;
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : kShapes) {
      const auto [x, channel, statistic] = types_of(shape, dtype);
      list.push_back(
          {.name = format("{}_{}", shape.name, name(dtype)),
           .op = make_op(LayerNormWeightGradientAttrs{}),
           .operands = {x, x, statistic, statistic},
           .fills = {normal(), normal(1.0, 2.0)},
           .prepare = [](std::span<HostTensor> in) { fill_statistics(in[1], in[2], in[3]); },
           .op_class = OpClass::kReduction,
           .differentiable = false});
    }
  }
  return list;
}

void reference(const LayerNormAttrs& attrs, const Views& views) {
  const auto input = reals(views.in[0]);
  const auto gain = reals(views.in[gain_operand(attrs)]);
  const auto bias = reals(views.in[gain_operand(attrs) + 1]);
  const auto y = reals(views.out[0]);
  const auto [rows, columns] = rows_and_columns(views.in[0]);
  std::vector<double> h(input.begin(), input.end());
  for (std::size_t i = 0; attrs.residual && i < h.size(); ++i) {
    h[i] += reals(views.in[1])[i] + (attrs.biased ? reals(views.in[2])[i % columns] : 0.0);
    reals(views.out[3])[i] = h[i];
  }
  const std::span<const double> x = h;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto [mean, rstd] = statistics(x.subspan(r * columns, columns), attrs.eps);
    reals(views.out[1])[r] = mean;
    reals(views.out[2])[r] = rstd;
    for (std::size_t c = 0; c < columns; ++c) {
      y[r * columns + c] = (x[r * columns + c] - mean) * rstd * gain[c] + bias[c];
    }
  }
}

void reference(const LayerNormBackwardAttrs& attrs, const Views& views) {
  const auto dy = reals(views.in[0]);
  const auto x = reals(views.in[1]);
  const auto gain = reals(views.in[2]);
  const auto mean = reals(views.in[3]);
  const auto rstd = reals(views.in[4]);
  const auto dx = reals(views.out[0]);
  const auto [rows, columns] = rows_and_columns(views.in[0]);
  for (std::size_t r = 0; r < rows; ++r) {
    // With n = (x - mean) rstd and d = dy g: dx = rstd (d - mean(d) - n mean(d n)).
    double mean_d = 0;
    double mean_dn = 0;
    for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) {
      const double d = dy[i] * gain[i % columns] / static_cast<double>(columns);
      mean_d += d;
      mean_dn += d * (x[i] - mean[r]) * rstd[r];
    }
    for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) {
      const double n = (x[i] - mean[r]) * rstd[r];
      dx[i] = rstd[r] * (dy[i] * gain[i % columns] - mean_d - n * mean_dn);
      dx[i] += attrs.residual ? reals(views.in[5])[i] : 0.0;
    }
  }
  if (attrs.weight_gradient) {
    const View parts[] = {views.in[0], views.in[1], views.in[3], views.in[4]};
    reference(LayerNormWeightGradientAttrs{},
              {.in = parts, .out = views.out.subspan(1), .workspace = {}});
  }
}

void reference(const LayerNormWeightGradientAttrs&, const Views& views) {
  const auto dy = reals(views.in[0]);
  const auto x = reals(views.in[1]);
  const auto mean = reals(views.in[2]);
  const auto rstd = reals(views.in[3]);
  const auto dgain = reals(views.out[0]);
  const auto dbias = reals(views.out[1]);
  std::ranges::fill(dgain, 0.0);
  std::ranges::fill(dbias, 0.0);
  const std::size_t columns = dgain.size();
  for (std::size_t i = 0; i < dy.size(); ++i) {
    dgain[i % columns] += dy[i] * (x[i] - mean[i / columns]) * rstd[i / columns];
    dbias[i % columns] += dy[i];
  }
}

}  // namespace tessera
