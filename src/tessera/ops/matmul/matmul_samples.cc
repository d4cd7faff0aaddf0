#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/matmul/matmul_operands.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::OpClass;
using conformance::reals;
using conformance::Sample;
using conformance::types;

namespace {

struct Case {
  std::string_view name;
  MatmulAttrs attrs;
  std::string_view a;
  std::string_view b;
};

const Case kCases[] = {
    {"one", {}, "?[m=1, k=1]", "?[k=1, n=1]"},
    {"odd", {}, "?[m=5, k=7]", "?[k=7, n=3]"},
    {"row", {}, "?[m=1, k=33]", "?[k=33, n=17]"},
    {"column", {}, "?[m=19, k=9]", "?[k=9, n=1]"},
    {"even", {}, "?[m=4, k=8]", "?[k=8, n=6]"},
    {"blocks", {}, "?[m=70, k=130]", "?[k=130, n=66]"},
    {"depth_63", {}, "?[m=68, k=63]", "?[k=63, n=42]"},
    {"linear_row", {.transpose_b = true}, "?[batch=1, seq=1, embed=70]", "?[mlp=36, embed=70]"},
    {"linear_rows", {.transpose_b = true}, "?[batch=2, seq=2, embed=18]", "?[mlp=6, embed=18]"},
    {"linear", {.transpose_b = true}, "?[batch=2, seq=4, embed=18]", "?[mlp=34, embed=18]"},
    {"input_gradient", {}, "?[batch=2, seq=3, mlp=35]", "?[mlp=35, embed=17]"},
    {"weight_gradient",
     {.transpose_a = true, .contract = 2},
     "?[batch=2, seq=8, mlp=18]",
     "?[batch=2, seq=8, embed=10]"},
    {"both_transposed", {.transpose_a = true, .transpose_b = true}, "?[k=9, m=5]", "?[n=11, k=9]"},
    {"from_heads",
     {.transpose_b = true, .contract = 2},
     "?[batch=2, seq=4, heads=4, head_dim=6]",
     "?[embed=10, heads=4, head_dim=6]"},
    {"to_heads",
     {.transpose_b = true},
     "?[batch=2, seq=4, embed=10]",
     "?[heads=4, head_dim=6, embed=10]"},
    {"heads_both_transposed",
     {.transpose_a = true, .transpose_b = true, .contract = 2},
     "?[heads=2, head_dim=6, seq=4]",
     "?[embed=10, heads=2, head_dim=6]"},
};

Sample plain(const Case& c, DType from, DType to) {
  MatmulAttrs attrs = c.attrs;
  attrs.dtype = to;
  return {.name = format("{}_{}_{}", c.name, name(from), name(to)),
          .op = make_op(attrs),
          .operands = types(from, {c.a, c.b}),
          .op_class = OpClass::kReduction,
          .differentiable = from == to,
          .parameters = {1}};  // the wide form is for gradients
}

Sample accumulating(const Case& c, DType from, DType to) {
  Sample sample = plain(c, from, to);
  const TensorType result = infer(*sample.op, sample.operands)[0];
  MatmulAttrs attrs = c.attrs;
  attrs.dtype = to;
  attrs.accumulate = true;
  sample.name += "_accumulate";
  sample.op = make_op(attrs);
  sample.operands.push_back(result);
  sample.differentiable = false;
  sample.addends = {2};
  return sample;
}

Sample biased(const Case& c, DType dtype) {
  Sample sample = plain(c, dtype, dtype);
  MatmulAttrs attrs = c.attrs;
  attrs.dtype = dtype;
  attrs.epilogue = Epilogue::kBias;
  const auto contract = static_cast<std::ptrdiff_t>(attrs.contract);
  TensorType bias = sample.operands[1];
  bias.dims.erase(attrs.transpose_b ? bias.dims.end() - contract : bias.dims.begin(),
                  attrs.transpose_b ? bias.dims.end() : bias.dims.begin() + contract);
  sample.name += "_bias";
  sample.op = make_op(attrs);
  sample.operands.push_back(bias);
  sample.op_class = dtype == DType::kBF16 ? OpClass::kRounded : OpClass::kReduction;
  sample.differentiable = false;
  sample.addends = {2};
  return sample;
}

// With gelu, whose argument is kept or not.
Sample with_gelu(const Case& c, DType dtype, bool keeps_argument) {
  Sample sample = biased(c, dtype);
  MatmulAttrs attrs = *sample.op->get_if<MatmulAttrs>();
  attrs.epilogue = keeps_argument ? Epilogue::kGeluAndArgument : Epilogue::kGelu;
  sample.name += keeps_argument ? "_gelu_and_argument" : "_gelu";
  sample.op = make_op(attrs);
  sample.addends = {};
  return sample;
}

Sample before_gelu(const Case& c, DType dtype) {
  Sample sample = plain(c, dtype, dtype);
  MatmulAttrs attrs = *sample.op->get_if<MatmulAttrs>();
  sample.operands.push_back(infer(*sample.op, sample.operands)[0]);
  attrs.epilogue = Epilogue::kGeluBackward;
  sample.name += "_gelu_backward";
  sample.op = make_op(attrs);
  sample.op_class = dtype == DType::kBF16 ? OpClass::kRounded : OpClass::kReduction;
  sample.differentiable = false;
  return sample;
}

}  // namespace

SampleList samples(SamplesOf<MatmulAttrs>) {
  SampleList list;
  for (const Case& c : kCases) {
    list.push_back(plain(c, DType::kF32, DType::kF32));
    list.push_back(plain(c, DType::kBF16, DType::kBF16));
    list.push_back(plain(c, DType::kBF16, DType::kF32));
    list.push_back(biased(c, DType::kF32));
    list.push_back(biased(c, DType::kBF16));
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      list.push_back(with_gelu(c, dtype, false));
      list.push_back(with_gelu(c, dtype, true));
      list.push_back(before_gelu(c, dtype));
    }
    list.push_back(accumulating(c, DType::kF32, DType::kF32));
    list.push_back(accumulating(c, DType::kBF16, DType::kF32));
  }
  return list;
}

namespace {

// What is added to the sum at a row and a column.
double addend(const MatmulAttrs& attrs,
              const MatmulOperands& of,
              std::pair<std::size_t, std::size_t> place,
              std::size_t columns) {
  if (attrs.accumulate) {
    return reals(of.accumulator)[place.first * columns + place.second];
  }
  return has_bias(attrs.epilogue) ? reals(of.bias)[place.second] : 0.0;
}

}  // namespace

void reference(const MatmulAttrs& attrs, const Views& views) {
  const MatmulOperands of = by_name(attrs, views);
  const auto a = reals(of.a);
  const auto b = reals(of.b);
  const auto y = reals(of.y);
  std::size_t depth = 1;
  for (int i = 0; i < attrs.contract; ++i) {
    const int last = of.a.num_dims - 1 - i;
    depth *= conformance::bound(of.a, attrs.transpose_a ? i : last);
  }
  const std::size_t rows = a.size() / depth;
  const std::size_t columns = b.size() / depth;
  for (std::size_t m = 0; m < rows; ++m) {
    for (std::size_t n = 0; n < columns; ++n) {
      double sum = addend(attrs, of, {m, n}, columns);
      for (std::size_t k = 0; k < depth; ++k) {
        sum += a[attrs.transpose_a ? k * rows + m : m * depth + k] *
               b[attrs.transpose_b ? n * depth + k : k * columns + n];
      }
      y[m * columns + n] = sum;
    }
  }
  if (attrs.epilogue == Epilogue::kGeluAndArgument) {
    std::ranges::copy(y, reals(of.argument).begin());
  }
  if (has_gelu(attrs.epilogue)) {
    reference(GeluAttrs{}, {.in = {&of.y, 1}, .out = {&of.y, 1}, .workspace = {}});
  } else if (attrs.epilogue == Epilogue::kGeluBackward) {
    const std::array<View, 2> operands = {of.y, of.argument};
    reference(GeluBackwardAttrs{}, {.in = operands, .out = {&of.y, 1}, .workspace = {}});
  }
}

}  // namespace tessera
