#pragma once

#include "tessera/backend/cpu/gemm.h"
#include "tessera/ir/view.h"
#include "tessera/ops/matmul/matmul.h"

namespace tessera {

// The product of matrices in which the dims that come second in memory are columns, the others
// rows.
inline cpu::Gemm gemm_of(const MatmulAttrs& attrs, const View& a, const View& b, const View& c) {
  const auto contract = static_cast<std::int32_t>(attrs.contract);
  const std::int32_t num_m = a.num_dims - contract;
  const std::int32_t num_n = b.num_dims - contract;
  const View::Rows rows_a = a.rows(attrs.transpose_a ? num_m : contract);
  const View::Rows rows_b = b.rows(attrs.transpose_b ? contract : num_n);
  const View::Rows rows_c = c.rows(num_n);
  return {.m = rows_c.count,
          .n = rows_c.width,
          .k = attrs.transpose_a ? rows_a.count : rows_a.width,
          .transpose_a = attrs.transpose_a,
          .transpose_b = attrs.transpose_b,
          .pitch_a = rows_a.stride,
          .pitch_b = rows_b.stride,
          .pitch_c = rows_c.stride,
          .input = a.dtype,
          .output = c.dtype,
          .accumulate = attrs.accumulate};
}

}  // namespace tessera
