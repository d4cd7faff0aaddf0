#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/products/gemm.h"
#include "tessera/base/float8.h"
#include "tessera/ops/float8/float8.h"
#include "tessera/ops/float8/float8_cuda.h"
#include "tessera/ops/float8/float8_operands.h"
#include "tessera/ops/matmul/matmul_gemm.h"

namespace tessera {
namespace cuda {
namespace {

// to[row, column] = the value of from[row, column], which bf16 holds; without gaps.
template <class Float8>
__global__ void widen_codes(Codes from, BFloat16* to) {
  for (std::int64_t i = first_item(); i < from.rows * from.columns; i += num_threads()) {
    const std::uint8_t code = from.data[i / from.columns * from.pitch + i % from.columns];
    to[i] = to_bfloat16(to_float(Float8{code}));
  }
}

// What the rows and columns of a product are to be multiplied by; of one, with a stride of zero.
struct Inverses {
  const float* rows;
  const float* columns;
  std::int64_t row_stride;
  std::int64_t column_stride;
};

// y = sums times both (+ y).
template <class T>
__global__ void scale_sums(const float* sums,
                           Inverses inverses,
                           Matrix<T> y,
                           std::int64_t rows,
                           std::int64_t columns,
                           bool accumulate) {
  for (std::int64_t i = first_item(); i < rows * columns; i += num_threads()) {
    const std::int64_t row = i / columns;
    const std::int64_t column = i % columns;
    const float factor = inverses.rows[row * inverses.row_stride] *
                         inverses.columns[column * inverses.column_stride];
    const float value = rounded_to<T>(sums[i] * factor);
    T* const place = y.at(row, column);
    *place = narrow<T>(accumulate ? widen(*place) + value : value);
  }
}

__global__ static void spread(const float* value, std::int64_t count, float* to) {
  for (std::int64_t i = first_item(); i < count; i += num_threads()) {
    to[i] = *value;
  }
}

// A product of codes. Where tensor cores do not take the shape, the codes are widened to bf16,
// which holds them, and the sums scaled afterwards.
class Float8Product {
 public:
  Float8Product(const ScaledMatmulAttrs& attrs, const Views& views)
      : of_(by_name(attrs, views)),
        gemm_(gemm_of(product_of(attrs), of_.a, of_.b, of_.y)),
        fast_accumulation_(attrs.fast_accumulation),
        parts_(gemm_, of_, views.workspace.data()),
        rest_(views.workspace.subspan(static_cast<std::size_t>(parts_.bytes))) {}

  void run(Context& context) const { parts_.takes_codes ? of_codes(context) : of_values(context); }

 private:
  Codes codes_a() const {
    return {.data = of_.a.as<const std::uint8_t>(),
            .rows = gemm_.m,
            .columns = gemm_.k,
            .pitch = gemm_.pitch_a};
  }

  Codes codes_b() const {
    return {.data = of_.b.as<const std::uint8_t>(),
            .rows = gemm_.n,
            .columns = gemm_.k,
            .pitch = gemm_.pitch_b};
  }

  static const float* scales(const Context& context,
                             const View& inverse,
                             std::int64_t count,
                             float* to) {
    const float* const found = inverse.as<const float>();
    if (to == nullptr) {
      return found;
    }
    launch(context, "spread of a scale", blocks_for(context, count), spread, found, count, to);
    return to;
  }

  void of_codes(Context& context) const {
    const Float8Gemm product = {.gemm = gemm_,
                                .a = of_.a.dtype,
                                .b = of_.b.dtype,
                                .by_row = parts_.by_row,
                                .fast_accumulation = fast_accumulation_};
    const Float8Operands operands = {
        .a = of_.a.data,
        .b = of_.b.data,
        .inverse_a = scales(context, of_.inverse_a, gemm_.m, parts_.spread_a),
        .inverse_b = scales(context, of_.inverse_b, gemm_.n, parts_.spread_b),
        .c = of_.y.data};
    context.gemms().run_float8(context.stream(), product, operands, rest_);
  }

  static void widen(const Context& context, DType dtype, const Codes& from, BFloat16* to) {
    launch(context,
           "widening of codes",
           blocks_for(context, from.rows * from.columns),
           dtype == DType::kF8E4M3 ? widen_codes<Float8E4M3> : widen_codes<Float8E5M2>,
           from,
           to);
  }

  void of_values(Context& context) const {
    const Codes a = codes_a();
    const Codes b = codes_b();
    widen(context, of_.a.dtype, a, parts_.wide_a);
    widen(context, of_.b.dtype, b, parts_.wide_b);
    Gemm gemm = gemm_;
    gemm.pitch_a = a.columns;
    gemm.pitch_b = b.columns;
    gemm.pitch_c = gemm.n;
    gemm.input = DType::kBF16;
    gemm.output = DType::kF32;
    gemm.accumulate = false;
    context.gemms().run(
        context.stream(), gemm, {.a = parts_.wide_a, .b = parts_.wide_b, .c = parts_.sums}, rest_);
    const Inverses inverses = {.rows = of_.inverse_a.as<const float>(),
                               .columns = of_.inverse_b.as<const float>(),
                               .row_stride = of_.inverse_a.num_dims == 0 ? 0 : 1,
                               .column_stride = of_.inverse_b.num_dims == 0 ? 0 : 1};
    with_type(of_.y.dtype, [&](auto element) {
      using T = decltype(element);
      Matrix<T> y;
      y.data = of_.y.as<T>();
      y.stride = gemm_.pitch_c;
      launch(context,
             "scaled_matmul",
             blocks_for(context, gemm.m * gemm.n),
             scale_sums<T>,
             parts_.sums,
             inverses,
             y,
             gemm.m,
             gemm.n,
             gemm_.accumulate);
    });
  }

  ScaledMatmulOperands of_;
  Gemm gemm_;
  bool fast_accumulation_;
  Float8Parts parts_;
  std::span<std::byte> rest_;  // of the workspace, for the product
};

}  // namespace
}  // namespace cuda

void run(const ScaledMatmulAttrs& attrs, cuda::Context& context, const Views& views) {
  cuda::Float8Product(attrs, views).run(context);
}

}  // namespace tessera
