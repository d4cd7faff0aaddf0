#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/rms_norm/rms_norm.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::HostTensor;
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
                             {"unheld", "seq=2, ", 8200}};

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

TensorType rows_type(const Shape& shape, DType dtype) {
  return conformance::types(dtype, {format("?[{}embed={}]", shape.leading, shape.channels)})[0];
}

TensorType gain_type(const Shape& shape, DType dtype) {
  return conformance::types(dtype, {format("?[embed={}]", shape.channels)})[0];
}

// With few channels and a small eps, dx is what two almost equal terms leave: no f32 kernel has it.
double eps_of(std::size_t columns) {
  return columns < 4 ? 0.25 : 1e-5;
}

// rstd of x as the forward op leaves it.
void fill_rstd(const HostTensor& x, HostTensor& rstd) {
  const auto [rows, columns] = rows_and_columns(x.view());
  for (std::size_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (const double element : x.f64().subspan(r * columns, columns)) {
      squares += element * element;
    }
    rstd.f64()[r] = 1.0 / std::sqrt(squares / static_cast<double>(columns) + eps_of(columns));
  }
}

}  // namespace

SampleList samples(SamplesOf<RmsNormAttrs>) {
  SampleList list;
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : kShapes) {
      const TensorType x = rows_type(shape, dtype);
      const TensorType gain = gain_type(shape, dtype);
      // f32 with the default eps, bf16 with a large one.
      const double eps = dtype == DType::kF32 ? 1e-5 : 0.25;
      list.push_back({.name = format("{}_{}", shape.name, name(dtype)),
                      .op = make_op(RmsNormAttrs{.eps = eps}),
                      .operands = {x, gain},
                      .op_class = OpClass::kReduction,
                      .parameters = {1}});
      Sample fused{.name = format("{}_{}_residual", shape.name, name(dtype)),
                   .op = make_op(RmsNormAttrs{.eps = eps, .residual = true}),
                   .operands = {x, x, gain},
                   .op_class = OpClass::kReduction,
                   .differentiable = false};
      if (dtype == DType::kBF16) {  // h is rounded before it is normalized
        fused.result_classes = {OpClass::kRounded, OpClass::kRounded, OpClass::kElementwise};
      }
      list.push_back(fused);
      if (!shape.leading.empty()) {
        const Float8Results float8 = {.codes = true};
        Sample coded = fused;
        coded.op = make_op(RmsNormAttrs{.eps = eps, .residual = true, .float8 = float8});
        add_codes(coded, float8, 1);
        list.push_back(std::move(coded));
      }
      fused.name += "_amax";
      fused.op = make_op(RmsNormAttrs{.eps = eps, .residual = true, .float8 = {.amax = true}});
      if (dtype == DType::kBF16) {
        fused.result_classes.push_back(OpClass::kRounded);
      }
      list.push_back(std::move(fused));
    }
  }
  return list;
}

namespace {

// Codes of gradients may have either dtype.
DType coded_dtype(int form) {
  return form / 4 == 2 && form % 2 == 1 ? DType::kF8E5M2 : DType::kF8E4M3;
}

Sample backward_sample(const Shape& shape, DType dtype, int form) {
  const RmsNormBackwardAttrs attrs{
      .residual = form % 2 == 1,
      .weight_gradient = form / 2 % 2 == 1,
      .float8 = {.amax = form / 4 == 1, .codes = form / 4 == 2, .dtype = coded_dtype(form)}};
  const TensorType x = rows_type(shape, dtype);
  Sample sample{
      .name = format("{}_{}_form{}", shape.name, name(dtype), form),
      .op = make_op(attrs),
      .operands = {x, x, gain_type(shape, dtype), with_dtype(without_last(x), DType::kF32)},
      .prepare = [](std::span<HostTensor> in) { fill_rstd(in[1], in[3]); },
      .op_class = OpClass::kReduction,
      .differentiable = false};
  if (attrs.residual) {
    sample.operands.push_back(x);
  }
  if (attrs.residual && dtype == DType::kBF16) {  // dx is rounded before r is added
    sample.result_classes = {OpClass::kRoundedTerms, OpClass::kReduction};
  }
  if (attrs.float8.codes) {
    add_codes(sample, attrs.float8, 1);
  }
  if (attrs.float8.amax && dtype == DType::kBF16) {
    sample.result_classes.resize(attrs.weight_gradient ? 2 : 1, OpClass::kReduction);
    sample.result_classes.push_back(OpClass::kRounded);
  }
  return sample;
}

}  // namespace

SampleList samples(SamplesOf<RmsNormBackwardAttrs>) {
  SampleList list;
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : kShapes) {
      for (const int form : {0, 1, 2, 3, 4, 7, 8, 9, 10, 11}) {
        if (form < 8 || !shape.leading.empty()) {
          list.push_back(backward_sample(shape, dtype, form));
        }
      }
    }
  }
  return list;
}

SampleList samples(SamplesOf<RmsNormWeightGradientAttrs>) {
  SampleList list;
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : kShapes) {
      const TensorType x = rows_type(shape, dtype);
      list.push_back({.name = format("{}_{}", shape.name, name(dtype)),
                      .op = make_op(RmsNormWeightGradientAttrs{}),
                      .operands = {x, x, with_dtype(without_last(x), DType::kF32)},
                      .prepare = [](std::span<HostTensor> in) { fill_rstd(in[1], in[2]); },
                      .op_class = OpClass::kReduction,
                      .differentiable = false});
    }
  }
  return list;
}

void reference(const RmsNormAttrs& attrs, const Views& views) {
  const auto x = reals(views.in[0]);
  const auto gain = reals(views.in[attrs.residual ? 2 : 1]);
  const auto y = reals(views.out[0]);
  const auto rstd = reals(views.out[1]);
  std::vector<double> h(x.begin(), x.end());
  if (attrs.residual) {
    std::ranges::transform(h, reals(views.in[1]), h.begin(), std::plus<>());
    std::ranges::copy(h, reals(views.out[2]).begin());
  }
  const auto [rows, columns] = rows_and_columns(views.in[0]);
  for (std::size_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (std::size_t c = 0; c < columns; ++c) {
      squares += h[r * columns + c] * h[r * columns + c];
    }
    rstd[r] = 1.0 / std::sqrt(squares / static_cast<double>(columns) + attrs.eps);
    for (std::size_t c = 0; c < columns; ++c) {
      y[r * columns + c] = h[r * columns + c] * gain[c] * rstd[r];
    }
  }
  conformance::make_float8(attrs.float8, views.out[0], views.out);
}

void reference(const RmsNormBackwardAttrs& attrs, const Views& views) {
  const auto dy = reals(views.in[0]);
  const auto x = reals(views.in[1]);
  const auto gain = reals(views.in[2]);
  const auto rstd = reals(views.in[3]);
  const auto dx = reals(views.out[0]);
  const auto [rows, columns] = rows_and_columns(views.in[0]);
  for (std::size_t r = 0; r < rows; ++r) {
    double product = 0;
    for (std::size_t c = 0; c < columns; ++c) {
      product += dy[r * columns + c] * gain[c] * x[r * columns + c];
    }
    const double mean = product / static_cast<double>(columns);
    for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) {
      dx[i] = rstd[r] * (dy[i] * gain[i % columns] - x[i] * rstd[r] * rstd[r] * mean);
      dx[i] += attrs.residual ? reals(views.in[4])[i] : 0.0;
    }
  }
  if (attrs.weight_gradient) {
    const View parts[] = {views.in[0], views.in[1], views.in[3]};
    reference(RmsNormWeightGradientAttrs{},
              {.in = parts, .out = views.out.subspan(1), .workspace = {}});
  }
  conformance::make_float8(attrs.float8, views.out[0], views.out);
}

void reference(const RmsNormWeightGradientAttrs&, const Views& views) {
  const auto dy = reals(views.in[0]);
  const auto x = reals(views.in[1]);
  const auto rstd = reals(views.in[2]);
  const auto dgain = reals(views.out[0]);
  std::ranges::fill(dgain, 0.0);
  for (std::size_t i = 0; i < dy.size(); ++i) {
    dgain[i % dgain.size()] += dy[i] * x[i] * rstd[i / dgain.size()];
  }
}

}  // namespace tessera
