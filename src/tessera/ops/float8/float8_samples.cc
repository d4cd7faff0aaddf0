#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/float8/float8.h"
#include "tessera/ops/float8/float8_operands.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::HostTensor;
using conformance::normal;
using conformance::OpClass;
using conformance::reals;
using conformance::Sample;
using conformance::types;
using conformance::uniform_between;

namespace {

struct Shape {
  std::string_view name;
  std::string_view x;
  std::int64_t dims;  // that share a scale
  bool leading = false;

  bool is_of_rows() const {
    return !leading && dims < static_cast<std::int64_t>(types(DType::kF32, {x})[0].num_dims());
  }
};

constexpr Shape kShapes[] = {
    {"one", "?[embed=1]", 1},
    {"all_odd", "?[batch=3, seq=5, embed=7]", 3},
    {"all_even", "?[batch=2, seq=4, embed=6]", 3},
    {"all_large", "?[seq=140, embed=258]", 2},
    {"rows", "?[batch=2, seq=4, embed=18]", 1},
    {"rows_odd", "?[seq=5, embed=67]", 1},
    {"rows_of_heads", "?[batch=2, seq=4, heads=2, head_dim=6]", 2},
    {"rows_large", "?[seq=131, embed=260]", 1},
    {"rows_wide", "?[seq=3, embed=1040]", 1},
    {"rows_wider", "?[seq=2, embed=4104]", 1},
    {"rows_widest", "?[seq=2, embed=8200]", 1},
    {"columns", "?[batch=2, seq=4, mlp=6]", 2, true},
    {"columns_odd", "?[seq=9, mlp=67]", 1, true},
    {"columns_of_heads", "?[seq=6, heads=2, head_dim=4]", 1, true},
    {"columns_large", "?[seq=66, mlp=700]", 1, true},
};

// The place of x's element `i` among the scales, of which there are `scales`.
std::size_t scale_of(std::size_t i, std::size_t size, std::size_t scales, bool leading) {
  return leading ? i % scales : i / (size / scales);
}

template <class Amax>
void largest(std::span<const double> x, bool leading, const Amax& amax) {
  std::ranges::fill(amax, 0.0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    double& known = amax[scale_of(i, x.size(), amax.size(), leading)];
    known = std::max(known, std::abs(x[i]));
  }
}

// Slices along the last dim have rows with gaps; dims that share a scale, or have one each, must
// lie together.
std::int32_t sliced_dim(const Shape& shape, const TensorType& x) {
  const auto count = static_cast<std::int32_t>(x.num_dims());
  const std::int64_t together = shape.leading ? count - shape.dims : shape.dims;
  return count > 1 && (together == 1 || shape.dims == count) ? count - 1 : -1;
}

struct Product {
  std::string_view name;
  ScaledMatmulAttrs attrs;
  std::string_view a;
  std::string_view b;
  std::string_view rows = "f32[]";  // of inverse_a
  std::string_view columns = "f32[]";
};

const Product kProducts[] = {
    {"one", {}, "?[m=1, k=1]", "?[n=1, k=1]"},
    {"odd", {}, "?[m=5, k=7]", "?[n=3, k=7]"},
    {"even", {}, "?[m=4, k=8]", "?[n=6, k=8]"},
    {"linear",
     {},
     "?[batch=2, seq=4, embed=18]",
     "?[mlp=34, embed=18]",
     "f32[batch=2, seq=4]",
     "f32[mlp=34]"},
    {"linear_row", {}, "?[seq=1, embed=70]", "?[mlp=36, embed=70]"},
    {"weight_gradient",
     {.contract = 2},
     "?[mlp=18, batch=2, seq=8]",
     "?[embed=10, batch=2, seq=8]",
     "f32[mlp=18]",
     "f32[embed=10]"},
    {"from_heads",
     {.contract = 2},
     "?[batch=2, seq=4, heads=4, head_dim=6]",
     "?[embed=10, heads=4, head_dim=6]",
     "f32[batch=2, seq=4]"},
    {"columns_alone", {}, "?[m=5, k=9]", "?[n=11, k=9]", "f32[]", "f32[n=11]"},
    {"blocks", {}, "?[m=1040, k=5]", "?[n=1030, k=5]"},
    // As tensor cores take them, with the factors of a layer's products.
    {"groups", {}, "?[m=7, k=48]", "?[n=32, k=48]"},
    {"groups_linear",
     {},
     "?[batch=2, seq=5, embed=80]",
     "?[mlp=48, embed=80]",
     "f32[batch=2, seq=5]",
     "f32[mlp=48]"},
    {"groups_rows_alone",
     {},
     "?[batch=2, seq=5, mlp=48]",
     "?[embed=80, mlp=48]",
     "f32[batch=2, seq=5]"},
    {"groups_weight_gradient",
     {.contract = 2},
     "?[mlp=48, batch=2, seq=40]",
     "?[embed=96, batch=2, seq=40]",
     "f32[]",
     "f32[embed=96]"},
};

// A matrix of codes with its first dims behind the others.
struct Transposition {
  std::string_view name;
  std::string_view x;
  std::int64_t rows;
};

constexpr Transposition kTranspositions[] = {{"one", "?[seq=1, embed=1]", 1},
                                             {"odd", "?[batch=3, seq=5, embed=7]", 2},
                                             {"even", "?[batch=2, seq=16, embed=24]", 2},
                                             {"of_heads", "?[seq=6, heads=2, head_dim=4]", 1},
                                             {"tiles", "?[seq=144, embed=200]", 1},
                                             {"tiles_odd", "?[batch=3, seq=43, embed=67]", 2}};

// y (columns, rows) = x (rows, columns).
void transpose(std::span<const double> x, std::size_t rows, std::span<double> y) {
  const std::size_t columns = x.size() / rows;
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i % columns * rows + i / columns] = x[i];
  }
}

std::size_t leading_elements(const View& view, std::int64_t dims) {
  std::size_t count = 1;
  for (int d = 0; d < dims; ++d) {
    count *= conformance::bound(view, d);
  }
  return count;
}

Sample product_sample(const Product& product, DType a, DType b, DType to, bool accumulate) {
  ScaledMatmulAttrs attrs = product.attrs;
  attrs.dtype = to;
  Sample sample{.name = format("{}_{}_{}_{}", product.name, name(a), name(b), name(to)),
                .op = make_op(attrs),
                .operands = {types(a, {product.a})[0],
                             types(b, {product.b})[0],
                             types(a, {product.rows})[0],
                             types(a, {product.columns})[0]},
                .fills = {normal(20), normal(20), uniform_between(0.01, 2)},
                .op_class = OpClass::kReduction,
                .device_classes = {OpClass::kRounded},  // tensor cores add in fewer bits than f32
                .differentiable = false};
  sample.fills.push_back(sample.fills.back());
  if (accumulate) {
    sample.operands.push_back(infer(*sample.op, sample.operands)[0]);
    attrs.accumulate = true;
    sample.op = make_op(attrs);
    sample.name += "_accumulate";
    sample.fills.push_back(normal(500));
    sample.addends = {4};
  }
  return sample;
}

}  // namespace

SampleList samples(SamplesOf<AmaxAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : kShapes) {
      const TensorTypes operands = types(dtype, {shape.x});
      list.push_back({.name = format("{}_{}", shape.name, name(dtype)),
                      .op = make_op(AmaxAttrs{.dims = shape.dims, .leading = shape.leading}),
                      .operands = operands,
                      .op_class = OpClass::kExact,
                      .differentiable = false,
                      .sliced_dim = sliced_dim(shape, operands[0])});
    }
  }
  return list;
}

namespace {

Sample quantize_sample(std::string_view name,
                       std::string_view x,
                       DType from,
                       const QuantizeFloat8Attrs& attrs) {
  TensorTypes operands = types(from, {x});
  if (!attrs.amax) {
    operands.push_back(infer(AmaxAttrs{.dims = attrs.dims, .leading = attrs.leading}, operands)[0]);
  }
  return {.name = format("{}_{}_{}{}{}{}{}",
                         name,
                         tessera::name(from),
                         tessera::name(attrs.dtype),
                         attrs.power_of_two ? "_power_of_two" : "",
                         attrs.transposed ? "_transposed" : "",
                         attrs.codes ? "" : "_alone",
                         attrs.amax ? "_amax" : ""),
          .op = make_op(attrs),
          .operands = operands,
          .prepare =
              [leading = attrs.leading](std::span<HostTensor> tensors) {
                if (tensors.size() > 1) {
                  largest(tensors[0].f64(), leading, tensors[1].f64());
                }
              },
          .differentiable = false};
}

}  // namespace

SampleList samples(SamplesOf<QuantizeFloat8Attrs>) {
  SampleList list;
  for (const Shape& shape : kShapes) {
    const auto add = [&](DType from, DType to, bool power_of_two, bool amax = false) {
      Sample sample = quantize_sample(shape.name,
                                      shape.x,
                                      from,
                                      {.dims = shape.dims,
                                       .leading = shape.leading,
                                       .dtype = to,
                                       .power_of_two = power_of_two,
                                       .amax = amax});
      sample.sliced_dim = sliced_dim(shape, sample.operands[0]);
      list.push_back(std::move(sample));
    };
    for (const DType from : {DType::kF32, DType::kBF16}) {
      add(from, DType::kF8E4M3, false);
      add(from, DType::kF8E5M2, false);
    }
    add(DType::kF32, DType::kF8E4M3, true);
    if (shape.is_of_rows()) {
      add(DType::kF32, DType::kF8E5M2, false, true);
      add(DType::kBF16, DType::kF8E4M3, true, true);
    }
  }
  for (const Transposition& form : kTranspositions) {
    for (const bool leading : {false, true}) {
      for (const bool codes : {false, true}) {
        QuantizeFloat8Attrs attrs = {.dims = form.rows,
                                     .leading = leading,
                                     .power_of_two = leading,
                                     .codes = codes,
                                     .transposed = true,
                                     .rows = form.rows};
        if (!leading) {
          attrs.dims = static_cast<std::int64_t>(types(DType::kF32, {form.x})[0].num_dims());
        }
        const std::string name = format("{}_{}", form.name, leading ? "columns" : "all");
        list.push_back(quantize_sample(name, form.x, DType::kBF16, attrs));
        attrs.dtype = DType::kF8E5M2;
        list.push_back(quantize_sample(name, form.x, DType::kF32, attrs));
      }
    }
  }
  return list;
}

SampleList samples(SamplesOf<TransposeCodesAttrs>) {
  SampleList list;
  for (const Transposition& form : kTranspositions) {
    for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
      list.push_back({.name = format("{}_{}", form.name, name(dtype)),
                      .op = make_op(TransposeCodesAttrs{.rows = form.rows}),
                      .operands = types(dtype, {form.x}),
                      .op_class = OpClass::kExact,
                      .differentiable = false});
    }
  }
  return list;
}

SampleList samples(SamplesOf<ScaledMatmulAttrs>) {
  SampleList list;
  constexpr DType kE4M3 = DType::kF8E4M3;
  constexpr DType kE5M2 = DType::kF8E5M2;
  for (Product product : kProducts) {
    if (product.name == "groups") {
      product.attrs.fast_accumulation = true;
      Sample fast = product_sample(product, kE4M3, kE4M3, DType::kF32, false);
      fast.name += "_fast";
      list.push_back(std::move(fast));
      product.attrs.fast_accumulation = false;
    }
    list.push_back(product_sample(product, kE4M3, kE4M3, DType::kF32, false));
    list.push_back(product_sample(product, kE4M3, kE4M3, DType::kBF16, false));
    list.push_back(product_sample(product, kE5M2, kE4M3, DType::kF32, true));
    list.push_back(product_sample(product, kE4M3, kE5M2, DType::kBF16, false));
  }
  return list;
}

void reference(const AmaxAttrs& attrs, const Views& views) {
  const AmaxOperands of = by_name(attrs, views);
  largest(reals(of.x), attrs.leading, reals(of.amax));
}

// Codes are not rounded here: the kernel's are off by that alone.
void reference(const QuantizeFloat8Attrs& attrs, const Views& views) {
  const QuantizeFloat8Operands of = by_name(attrs, views);
  const auto x = reals(of.x);
  const auto inverse = reals(of.inverse);
  std::vector<double> amax(inverse.size());
  if (attrs.amax) {
    largest(x, attrs.leading, std::span(amax));
  } else {
    std::ranges::copy(reals(of.amax), amax.begin());
  }
  std::vector<double> codes(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t place = scale_of(i, x.size(), amax.size(), attrs.leading);
    const double largest = attrs.dtype == DType::kF8E4M3 ? 448.0 : 57344.0;
    double scale = largest / std::max(amax[place], std::ldexp(1.0, -100));
    if (attrs.power_of_two) {
      scale = std::exp2(std::floor(std::log2(scale)));
    }
    codes[i] = x[i] * scale;
    inverse[place] = 1.0 / scale;
  }
  if (attrs.codes) {
    std::ranges::copy(codes, reals(of.codes).begin());
  }
  if (attrs.transposed) {
    transpose(codes, leading_elements(of.x, attrs.rows), reals(of.transposed));
  }
}

void conformance::make_float8(const Float8Results& wanted,
                              const View& y,
                              std::span<const View> results) {
  const Views views = float8_views(wanted, y, results);
  if (wanted.amax) {
    reference(AmaxAttrs{.dims = y.num_dims}, views);
  } else if (wanted.codes) {
    reference(code_attrs(wanted), views);
  }
}

void reference(const TransposeCodesAttrs& attrs, const Views& views) {
  const TransposeCodesOperands of = by_name(attrs, views);
  transpose(reals(of.codes), leading_elements(of.codes, attrs.rows), reals(of.transposed));
}

void reference(const ScaledMatmulAttrs& attrs, const Views& views) {
  const ScaledMatmulOperands of = by_name(attrs, views);
  const std::array<View, 2> factors = {of.a, of.b};
  MatmulAttrs product = product_of(attrs);
  product.accumulate = false;
  reference(product, {.in = factors, .out = views.out, .workspace = {}});
  const auto of_rows = reals(of.inverse_a);
  const auto of_columns = reals(of.inverse_b);
  const auto y = reals(of.y);
  std::size_t columns = 1;
  for (int d = of.a.num_dims - static_cast<int>(attrs.contract); d < of.y.num_dims; ++d) {
    columns *= conformance::bound(of.y, d);
  }
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] *= of_rows[of_rows.size() == 1 ? 0 : i / columns] *
            of_columns[of_columns.size() == 1 ? 0 : i % columns];
    y[i] += attrs.accumulate ? reals(of.accumulator)[i] : 0.0;
  }
}

}  // namespace tessera
