#include <string_view>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"
#include "tessera/ops/view/view_ops.h"

namespace tessera {

using conformance::OpClass;
using conformance::reals;
using conformance::Sample;
using conformance::types;

namespace {

// A tensor around one of its dims: outer blocks, the dim's bound, elements of one index.
struct AroundDim {
  std::size_t outer = 1;
  std::size_t bound = 1;
  std::size_t inner = 1;
};

AroundDim around(const View& view, std::int64_t dim) {
  AroundDim result;
  for (std::int64_t i = 0; i < view.num_dims; ++i) {
    const std::size_t size = conformance::bound(view, static_cast<int>(i));
    (i < dim ? result.outer : i == dim ? result.bound : result.inner) *= size;
  }
  return result;
}

// Copies indices [0, count) of the dim from `from` + offset of one tensor to another.
struct Part {
  std::size_t from = 0;
  std::size_t to = 0;
  std::size_t count = 0;
};

void copy_part(const View& source, const View& target, std::int64_t dim, const Part& part) {
  const AroundDim in = around(source, dim);
  const AroundDim out = around(target, dim);
  for (std::size_t block = 0; block < in.outer; ++block) {
    for (std::size_t i = 0; i < part.count * in.inner; ++i) {
      reals(target)[(block * out.bound + part.to) * out.inner + i] =
          reals(source)[(block * in.bound + part.from) * in.inner + i];
    }
  }
}

Sample moving(std::string name, OpRef op, TensorTypes operands) {
  return {.name = std::move(name),
          .op = std::move(op),
          .operands = std::move(operands),
          .op_class = OpClass::kExact,
          .differentiable = false};
}

}  // namespace

SampleList samples(SamplesOf<SliceAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto add = [&](std::string_view case_name, const SliceAttrs& attrs, std::string_view x) {
      list.push_back(
          moving(format("{}_{}", case_name, name(dtype)), make_op(attrs), types(dtype, {x})));
    };
    add("up", {.dim = 2, .begin = 7, .size = 7, .name = "mlp"}, "?[batch=2, seq=4, gate_up=14]");
    add("keys",
        {.dim = 2, .begin = 4, .size = 2, .name = "kv_heads"},
        "?[batch=2, seq=4, qkv=8, head_dim=6]");
    add("first_rows", {.dim = 0, .begin = 0, .size = 3}, "?[vocab=5, embed=4]");
    add("whole", {.dim = 0, .begin = 0, .size = 1}, "?[embed=1]");
  }
  return list;
}

SampleList samples(SamplesOf<ConcatAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    list.push_back(moving(format("gate_up_{}", name(dtype)),
                          make_op(ConcatAttrs{.dim = 2, .name = "gate_up"}),
                          types(dtype, {"?[batch=2, seq=4, mlp=7]", "?[batch=2, seq=4, mlp=7]"})));
    list.push_back(moving(format("qkv_{}", name(dtype)),
                          make_op(ConcatAttrs{.num_operands = 3, .dim = 0, .name = "qkv"}),
                          types(dtype,
                                {"?[heads=4, head_dim=6, embed=2]",
                                 "?[kv_heads=1, head_dim=6, embed=2]",
                                 "?[kv_heads=1, head_dim=6, embed=2]"})));
    list.push_back(moving(format("single_{}", name(dtype)),
                          make_op(ConcatAttrs{.num_operands = 1}),
                          types(dtype, {"?[embed=5]"})));
  }
  for (Sample& sample : list) {
    sample.differentiable = true;
  }
  return list;
}

void reference(const SliceAttrs& attrs, const Views& views) {
  copy_part(views.in[0],
            views.out[0],
            attrs.dim,
            {.from = static_cast<std::size_t>(attrs.begin),
             .to = 0,
             .count = static_cast<std::size_t>(attrs.size)});
}

void reference(const ConcatAttrs& attrs, const Views& views) {
  std::size_t place = 0;
  for (const View& operand : views.in) {
    const std::size_t count = around(operand, attrs.dim).bound;
    copy_part(operand, views.out[0], attrs.dim, {.from = 0, .to = place, .count = count});
    place += count;
  }
}

}  // namespace tessera
