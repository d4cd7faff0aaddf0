#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/float8/float8.h"
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
    {"one", {}, "?[m=1, k=1]", "?[k=1, n=1]"},
    {"odd", {}, "?[m=5, k=7]", "?[k=7, n=3]"},
    {"even", {}, "?[m=4, k=8]", "?[k=8, n=6]"},
    {"linear",
     {.transpose_b = true},
     "?[batch=2, seq=4, embed=18]",
     "?[mlp=34, embed=18]",
     "f32[batch=2, seq=4]",
     "f32[mlp=34]"},
    {"linear_row", {.transpose_b = true}, "?[seq=1, embed=70]", "?[mlp=36, embed=70]"},
    {"input_gradient",
     {},
     "?[batch=2, seq=3, mlp=35]",
     "?[mlp=35, embed=17]",
     "f32[batch=2, seq=3]",
     "f32[embed=17]"},
    {"weight_gradient",
     {.transpose_a = true, .contract = 2},
     "?[batch=2, seq=8, mlp=18]",
     "?[batch=2, seq=8, embed=10]",
     "f32[mlp=18]",
     "f32[embed=10]"},
    {"from_heads",
     {.transpose_b = true, .contract = 2},
     "?[batch=2, seq=4, heads=4, head_dim=6]",
     "?[embed=10, heads=4, head_dim=6]",
     "f32[batch=2, seq=4]"},
    {"both_transposed",
     {.transpose_a = true, .transpose_b = true},
     "?[k=9, m=5]",
     "?[n=11, k=9]",
     "f32[]",
     "f32[n=11]"},
    {"blocks", {.transpose_b = true}, "?[m=1040, k=5]", "?[n=1030, k=5]"},
    // As tensor cores take them, with the factors of a layer's three products.
    {"groups", {.transpose_b = true}, "?[m=7, k=48]", "?[n=32, k=48]"},
    {"groups_linear",
     {.transpose_b = true},
     "?[batch=2, seq=5, embed=80]",
     "?[mlp=48, embed=80]",
     "f32[batch=2, seq=5]",
     "f32[mlp=48]"},
    {"groups_input_gradient",
     {},
     "?[batch=2, seq=5, mlp=48]",
     "?[mlp=48, embed=80]",
     "f32[batch=2, seq=5]"},
    {"groups_weight_gradient",
     {.transpose_a = true, .contract = 2},
     "?[batch=2, seq=40, mlp=48]",
     "?[batch=2, seq=40, embed=96]",
     "f32[]",
     "f32[embed=96]"},
};

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

SampleList samples(SamplesOf<QuantizeFloat8Attrs>) {
  SampleList list;
  const auto add = [&](const Shape& shape, DType from, DType to, bool power_of_two) {
    const QuantizeFloat8Attrs attrs = {
        .dims = shape.dims, .leading = shape.leading, .dtype = to, .power_of_two = power_of_two};
    TensorTypes operands = types(from, {shape.x});
    operands.push_back(infer(AmaxAttrs{.dims = shape.dims, .leading = shape.leading}, operands)[0]);
    list.push_back(
        {.name = format(
             "{}_{}_{}{}", shape.name, name(from), name(to), power_of_two ? "_power_of_two" : ""),
         .op = make_op(attrs),
         .operands = operands,
         .prepare =
             [leading = shape.leading](std::span<HostTensor> tensors) {
               largest(tensors[0].f64(), leading, tensors[1].f64());
             },
         .differentiable = false,
         .sliced_dim = sliced_dim(shape, operands[0])});
  };
  for (const Shape& shape : kShapes) {
    for (const DType from : {DType::kF32, DType::kBF16}) {
      add(shape, from, DType::kF8E4M3, false);
      add(shape, from, DType::kF8E5M2, false);
    }
    add(shape, DType::kF32, DType::kF8E4M3, true);
  }
  return list;
}

SampleList samples(SamplesOf<ScaledMatmulAttrs>) {
  SampleList list;
  constexpr DType kE4M3 = DType::kF8E4M3;
  constexpr DType kE5M2 = DType::kF8E5M2;
  for (const Product& product : kProducts) {
    list.push_back(product_sample(product, kE4M3, kE4M3, DType::kF32, false));
    list.push_back(product_sample(product, kE4M3, kE4M3, DType::kBF16, false));
    list.push_back(product_sample(product, kE5M2, kE4M3, DType::kF32, true));
    list.push_back(product_sample(product, kE4M3, kE5M2, DType::kBF16, false));
  }
  return list;
}

void reference(const AmaxAttrs& attrs, const Views& views) {
  largest(reals(views.in[0]), attrs.leading, reals(views.out[0]));
}

// Codes are not rounded here: the kernel's are off by that alone.
void reference(const QuantizeFloat8Attrs& attrs, const Views& views) {
  const auto x = reals(views.in[0]);
  const auto amax = reals(views.in[1]);
  const auto codes = reals(views.out[0]);
  const auto inverse = reals(views.out[1]);
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
}

void reference(const ScaledMatmulAttrs& attrs, const Views& views) {
  std::vector<View> factors = {views.in[0], views.in[1]};
  MatmulAttrs product = product_of(attrs);
  product.accumulate = false;
  reference(product, {.in = factors, .out = views.out, .workspace = {}});
  const auto of_rows = reals(views.in[2]);
  const auto of_columns = reals(views.in[3]);
  const auto y = reals(views.out[0]);
  std::size_t columns = 1;
  for (int d = views.in[0].num_dims - static_cast<int>(attrs.contract); d < views.out[0].num_dims;
       ++d) {
    columns *= conformance::bound(views.out[0], d);
  }
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] *= of_rows[of_rows.size() == 1 ? 0 : i / columns] *
            of_columns[of_columns.size() == 1 ? 0 : i % columns];
    y[i] += attrs.accumulate ? reals(views.in[4])[i] : 0.0;
  }
}

}  // namespace tessera
