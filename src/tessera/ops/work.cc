#include "tessera/ops/work.h"

#include <numeric>

namespace tessera {

double flop(const Work& work) {
  const auto k = static_cast<double>(work.k);
  switch (work.kind) {
    case WorkKind::kProduct:
      return 2.0 * k * static_cast<double>(work.m) * static_cast<double>(work.n) *
                 static_cast<double>(work.batch * work.times) +
             work.elementwise_flop;
    // Two products, scores and values, and in backward five: scores again, and the gradients of
    // scores, queries, keys and values.
    case WorkKind::kAttention:
      return 4.0 * k * work.pairs + work.elementwise_flop;
    case WorkKind::kAttentionBackward:
      return 10.0 * k * work.pairs + work.elementwise_flop;
    case WorkKind::kStream:
    case WorkKind::kGather:
    case WorkKind::kFold:
    case WorkKind::kWire:
      break;
  }
  return work.elementwise_flop;
}

Work product_work(const Gemm& gemm, std::int64_t times) {
  const auto input = static_cast<std::int64_t>(size_bytes(gemm.input));
  const auto output = static_cast<std::int64_t>(size_bytes(gemm.output));
  const std::int64_t row_a = input * (gemm.transpose_a ? gemm.m : gemm.k);
  const std::int64_t row_b = input * (gemm.transpose_b ? gemm.k : gemm.n);
  // Tensor cores take the columns of a product of codes in groups of as many as codes.
  const std::int64_t row_c = (is_float8(gemm.input) ? input : output) * gemm.n;
  return {.kind = WorkKind::kProduct,
          .m = gemm.m,
          .n = gemm.n,
          .k = gemm.k,
          .times = times,
          .dtype = gemm.input,
          .row_bytes = std::gcd(std::gcd(row_a, row_b), row_c)};
}

void count_bytes(Work& work, Types operands, Types results) {
  for (const TensorType& type : operands) {
    work.bytes_read += static_cast<double>(type.num_bytes());
  }
  for (const TensorType& type : results) {
    work.bytes_written += static_cast<double>(type.num_bytes());
  }
}

Works streaming_work(double flop, Types operands, Types results) {
  Work stream{.dtype = operands.empty() ? DType::kF32 : operands[0].dtype,
              .elementwise_flop = flop};
  count_bytes(stream, operands, results);
  return {stream};
}

Works elementwise_work(double flop, Types operands, Types results) {
  return streaming_work(flop * static_cast<double>(operands[0].num_elements()), operands, results);
}

}  // namespace tessera
