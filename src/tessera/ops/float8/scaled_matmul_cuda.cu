#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/elements.h"
#include "tessera/backend/cuda/gemm.h"
#include "tessera/backend/cuda/workspace.h"
#include "tessera/base/float8.h"
#include "tessera/ops/float8/float8.h"
#include "tessera/ops/float8/float8_cuda.h"
#include "tessera/ops/matmul/matmul_gemm.h"

namespace tessera {
namespace cuda {
namespace {

// What tensor cores read codes in: a product has whole groups along the sums and its columns.
constexpr std::int64_t kCodeGroup = 16;

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
  Float8Product(const ScaledMatmulAttrs& attrs,
                std::span<const View> operands,
                std::span<const View> results,
                std::byte* workspace)
      : gemm_(gemm_of(product_of(attrs), operands[0], operands[1], results[0])),
        takes_codes_(gemm_.k % kCodeGroup == 0 && gemm_.n % kCodeGroup == 0 &&
                     gemm_.pitch_a % kCodeGroup == 0 && gemm_.pitch_b % kCodeGroup == 0 &&
                     gemm_.pitch_c % kCodeGroup == 0),
        by_row_(operands[2].num_dims > 0 || operands[3].num_dims > 0),
        fast_accumulation_(attrs.fast_accumulation),
        parts_(workspace) {
    if (!takes_codes_) {
      wide_a_ = parts_.take<BFloat16>(gemm_.m * gemm_.k);
      wide_b_ = parts_.take<BFloat16>(gemm_.k * gemm_.n);
      sums_ = parts_.take<float>(gemm_.m * gemm_.n);
      return;
    }
    spread_a_ = by_row_ && operands[2].num_dims == 0 ? parts_.take<float>(gemm_.m) : nullptr;
    spread_b_ = by_row_ && operands[3].num_dims == 0 ? parts_.take<float>(gemm_.n) : nullptr;
  }

  std::int64_t workspace_bytes() const { return parts_.size() + kGemmWorkspaceBytes; }

  void run(Context& context, const Views& views) const {
    const std::span<std::byte> rest =
        views.workspace.subspan(static_cast<std::size_t>(parts_.size()));
    takes_codes_ ? of_codes(context, views, rest) : of_values(context, views, rest);
  }

 private:
  Codes codes_a(const View& a) const {
    return {.data = a.as<const std::uint8_t>(),
            .rows = gemm_.m,
            .columns = gemm_.k,
            .pitch = gemm_.pitch_a};
  }

  Codes codes_b(const View& b) const {
    return {.data = b.as<const std::uint8_t>(),
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

  void of_codes(Context& context, const Views& views, std::span<std::byte> workspace) const {
    const Float8Gemm product = {.gemm = gemm_,
                                .a = views.in[0].dtype,
                                .b = views.in[1].dtype,
                                .by_row = by_row_,
                                .fast_accumulation = fast_accumulation_};
    const Float8Operands operands = {.a = views.in[0].data,
                                     .b = views.in[1].data,
                                     .inverse_a = scales(context, views.in[2], gemm_.m, spread_a_),
                                     .inverse_b = scales(context, views.in[3], gemm_.n, spread_b_),
                                     .c = views.out[0].data};
    context.gemms().run_float8(context.stream(), product, operands, workspace);
  }

  static void widen(const Context& context, DType dtype, const Codes& from, BFloat16* to) {
    launch(context,
           "widening of codes",
           blocks_for(context, from.rows * from.columns),
           dtype == DType::kF8E4M3 ? widen_codes<Float8E4M3> : widen_codes<Float8E5M2>,
           from,
           to);
  }

  void of_values(Context& context, const Views& views, std::span<std::byte> workspace) const {
    const Codes a = codes_a(views.in[0]);
    const Codes b = codes_b(views.in[1]);
    widen(context, views.in[0].dtype, a, wide_a_);
    widen(context, views.in[1].dtype, b, wide_b_);
    Gemm gemm = gemm_;
    gemm.pitch_a = a.columns;
    gemm.pitch_b = b.columns;
    gemm.pitch_c = gemm.n;
    gemm.input = DType::kBF16;
    gemm.output = DType::kF32;
    gemm.accumulate = false;
    context.gemms().run(
        context.stream(), gemm, {.a = wide_a_, .b = wide_b_, .c = sums_}, workspace);
    const Inverses inverses = {.rows = views.in[2].as<const float>(),
                               .columns = views.in[3].as<const float>(),
                               .row_stride = views.in[2].num_dims == 0 ? 0 : 1,
                               .column_stride = views.in[3].num_dims == 0 ? 0 : 1};
    with_type(views.out[0].dtype, [&](auto element) {
      using T = decltype(element);
      Matrix<T> y;
      y.data = views.out[0].as<T>();
      y.stride = gemm_.pitch_c;
      launch(context,
             "scaled_matmul",
             blocks_for(context, gemm.m * gemm.n),
             scale_sums<T>,
             sums_,
             inverses,
             y,
             gemm.m,
             gemm.n,
             gemm_.accumulate);
    });
  }

  Gemm gemm_;
  bool takes_codes_;
  bool by_row_;  // else one scale for each factor
  bool fast_accumulation_;
  Parts parts_;
  float* spread_a_ = nullptr;
  float* spread_b_ = nullptr;
  BFloat16* wide_a_ = nullptr;
  BFloat16* wide_b_ = nullptr;
  float* sums_ = nullptr;
};

}  // namespace
}  // namespace cuda

std::int64_t cuda_workspace_bytes(const ScaledMatmulAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results) {
  return cuda::Float8Product(attrs, operands, results, nullptr).workspace_bytes();
}

void run(const ScaledMatmulAttrs& attrs, cuda::Context& context, const Views& views) {
  cuda::Float8Product(attrs, views.in, views.out, views.workspace.data()).run(context, views);
}

}  // namespace tessera
