#pragma once

// What the kernels of batched_product share.

#include <cstddef>
#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/ir/view.h"
#include "tessera/ops/batched_product/batched_product_operands.h"
#include "tessera/ops/gemm.h"

namespace tessera {

// A matrix for each sequence and head: rows of tokens, (b, t, h, d), or of queries, (b, h, t, s).
class HeadMatrices {
 public:
  HeadMatrices(const View& view, bool has_heads_first)
      : view_(view), head_dim_(has_heads_first ? 1 : 2), row_dim_(has_heads_first ? 2 : 1) {
    TESSERA_CHECK(view.sizes[3] == 1 || view.strides[3] == 1, "rows with gaps in a product");
  }

  std::int64_t rows() const { return view_.sizes[row_dim_]; }

  std::int64_t columns() const { return view_.sizes[3]; }

  std::int64_t heads() const { return view_.sizes[head_dim_]; }

  std::int64_t batch() const { return view_.sizes[0]; }

  // Elements between the matrices of neighbouring heads.
  std::int64_t head_stride() const { return view_.strides[head_dim_]; }

  std::int64_t pitch() const { return rows() == 1 ? columns() : view_.strides[row_dim_]; }

  DType dtype() const { return view_.dtype; }

  std::byte* at(std::int64_t sequence, std::int64_t head, std::int64_t row = 0) const {
    const std::int64_t element = sequence * view_.strides[0] + head * view_.strides[head_dim_] +
                                 row * view_.strides[row_dim_];
    return view_.as<std::byte>() + element * static_cast<std::int64_t>(size_bytes(view_.dtype));
  }

 private:
  const View& view_;
  std::size_t head_dim_;
  std::size_t row_dim_;
};

// One head's product.
struct BatchedGemms {
  HeadMatrices a;
  HeadMatrices b;
  HeadMatrices y;
  Gemm gemm;
  std::int64_t group;       // heads of a or b for one of the other
  bool adds_group = false;  // the products of a group are added, in f32

  BatchedGemms(const BatchedProductAttrs& attrs, const BatchedProductOperands& of)
      : a(of.a, attrs.form != BatchedForm::kScores),
        b(of.b, false),
        y(of.y, attrs.form == BatchedForm::kScores),
        gemm{.m = y.rows(),
             .n = y.columns(),
             .k = attrs.form == BatchedForm::kKeys ? a.rows() : a.columns(),
             .transpose_a = attrs.form == BatchedForm::kKeys,
             .transpose_b = attrs.form == BatchedForm::kScores,
             .pitch_a = a.pitch(),
             .pitch_b = b.pitch(),
             .pitch_c = y.pitch(),
             .input = a.dtype(),
             .output = y.dtype()},
        group(attrs.group),
        adds_group(attrs.form == BatchedForm::kKeys && group > 1) {
    if (adds_group) {
      gemm.pitch_c = gemm.n;
      gemm.output = DType::kF32;
    }
  }

  std::int64_t sum_bytes() const {
    constexpr std::int64_t kLine = 64;
    const std::int64_t bytes = gemm.m * gemm.n * static_cast<std::int64_t>(sizeof(float));
    return adds_group ? (bytes + kLine - 1) / kLine * kLine : 0;
  }
};

}  // namespace tessera
