#include <algorithm>
#include <array>
#include <cstdint>

#include "tessera/backend/cuda/elements.h"
#include "tessera/backend/cuda/gemm.h"
#include "tessera/backend/cuda/row_sums.h"
#include "tessera/backend/cuda/workspace.h"
#include "tessera/base/float8.h"
#include "tessera/ops/float8/float8.h"
#include "tessera/ops/float8/scales.h"
#include "tessera/ops/matmul/matmul_gemm.h"

namespace tessera {
namespace cuda {
namespace {

// Rows and columns of a tile of codes that a block turns over.
constexpr int kTile = 32;
// What tensor cores read codes in: a product has whole groups along the sums and its columns.
constexpr std::int64_t kCodeGroup = 16;

// The bits of the largest magnitude among a pack.
template <int N, class T>
__device__ std::uint32_t largest_of(const T* place) {
  const Floats<N> values = load<N>(place);
  std::uint32_t largest = 0;
  for (int i = 0; i < N; ++i) {
    largest = std::max(largest, magnitude_bits(values.at[i]));
  }
  return largest;
}

__device__ inline std::uint32_t block_largest(std::uint32_t value) {
  return block_fold(value, [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); });
}

// A largest magnitude that is found by several blocks, in any order.
__device__ inline void raise(float* known, std::uint32_t magnitude) {
  atomicMax(reinterpret_cast<std::uint32_t*>(known), magnitude);
}

__global__ static void clear(float* values, std::int64_t count) {
  for (std::int64_t i = first_item(); i < count; i += num_threads()) {
    values[i] = 0.0F;
  }
}

// A matrix in packs.
template <class T>
struct Packs {
  Matrix<const T> x;
  std::int64_t rows;
  std::int64_t columns;  // packs in a row
};

template <int N, class T>
__global__ void amax_of_all(Packs<T> packs, float* result) {
  std::uint32_t largest = 0;
  for (std::int64_t i = first_item(); i < packs.rows * packs.columns; i += num_threads()) {
    largest =
        std::max(largest, largest_of<N>(packs.x.at(i / packs.columns, i % packs.columns * N)));
  }
  largest = block_largest(largest);
  if (threadIdx.x == 0) {
    raise(result, largest);
  }
}

template <int N, class T>
__global__ void amax_of_rows(Packs<T> packs, float* result) {
  for (std::int64_t row = blockIdx.x; row < packs.rows; row += gridDim.x) {
    std::uint32_t largest = 0;
    for (std::int64_t i = threadIdx.x; i < packs.columns; i += blockDim.x) {
      largest = std::max(largest, largest_of<N>(packs.x.at(row, i * N)));
    }
    largest = block_largest(largest);
    if (threadIdx.x == 0) {
      result[row] = std::bit_cast<float>(largest);
    }
  }
}

// A thread takes a pack of columns along a stretch of rows.
template <int N, class T>
__global__ void amax_of_columns(Packs<T> packs, std::int64_t stretches, float* result) {
  for (std::int64_t i = first_item(); i < stretches * packs.columns; i += num_threads()) {
    const std::int64_t stretch = i / packs.columns;
    const std::int64_t column = i % packs.columns * N;
    const std::int64_t end = packs.rows * (stretch + 1) / stretches;
    std::uint32_t largest[N] = {};
    for (std::int64_t row = packs.rows * stretch / stretches; row < end; ++row) {
      const Floats<N> values = load<N>(packs.x.at(row, column));
      for (int k = 0; k < N; ++k) {
        largest[k] = std::max(largest[k], magnitude_bits(values.at[k]));
      }
    }
    for (int k = 0; k < N; ++k) {
      raise(result + column + k, largest[k]);
    }
  }
}

template <int N, class T>
void run_amax(const Context& context, const ScaleShape& shape, const View& x, float* result) {
  const char* const name = "amax";
  const View::Rows rows = x.rows(shape.inner);
  const Packs<T> packs = {.x = {x, shape.inner}, .rows = rows.count, .columns = rows.width / N};
  if (shape.sharing == Sharing::kRows) {
    launch(context, name, blocks_of_rows(context, rows.count), amax_of_rows<N, T>, packs, result);
    return;
  }
  const std::int64_t scales = shape.sharing == Sharing::kAll ? 1 : rows.width;
  launch(context, name, blocks_for(context, scales), clear, result, scales);
  if (shape.sharing == Sharing::kAll) {
    const std::int64_t blocks = blocks_for(context, packs.rows * packs.columns);
    launch(context, name, blocks, amax_of_all<N, T>, packs, result);
    return;
  }
  const std::int64_t stretches = num_row_stretches(rows);
  launch(context,
         name,
         blocks_for(context, stretches * packs.columns),
         amax_of_columns<N, T>,
         packs,
         stretches,
         result);
}

// What a kernel of codes reads and writes.
template <class T, class Float8>
struct Quantization {
  Matrix<const T> x;
  Matrix<Float8> codes;
  const float* amax;
  float* inverse;
  bool power_of_two;

  __device__ float scale(std::int64_t i) const {
    return scale_of(amax[i], Float8::kMax, power_of_two);
  }

  template <int N>
  __device__ void encode(std::int64_t row, std::int64_t column, const float* scales) const {
    const Floats<N> values = load<N>(x.at(row, column));
    Pack<Float8, N> pack;
    for (int i = 0; i < N; ++i) {
      pack.at[i] = to_float8<Float8>(values.at[i] * scales[i]);
    }
    *reinterpret_cast<Pack<Float8, N>*>(codes.at(row, column)) = pack;
  }
};

// One scale for each row, or one for all of them.
template <class T, class Float8>
struct QuantizeRows {
  Quantization<T, Float8> task;
  bool is_one;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    const std::int64_t place = is_one ? 0 : row;
    const float scale = task.scale(place);
    if (column == 0 && (row == 0 || !is_one)) {
      task.inverse[place] = 1.0F / scale;
    }
    float scales[N];
    for (int i = 0; i < N; ++i) {
      scales[i] = scale;
    }
    task.template encode<N>(row, column, scales);
  }
};

// A thread takes a pack of columns, whose scales it makes once, along a stretch of rows.
template <int N, class T, class Float8>
__global__ void quantize_columns(Quantization<T, Float8> task,
                                 std::int64_t rows,
                                 std::int64_t packs,
                                 std::int64_t stretches) {
  for (std::int64_t i = first_item(); i < stretches * packs; i += num_threads()) {
    const std::int64_t stretch = i / packs;
    const std::int64_t column = i % packs * N;
    const std::int64_t end = rows * (stretch + 1) / stretches;
    float scales[N];
    for (int k = 0; k < N; ++k) {
      scales[k] = task.scale(column + k);
      if (stretch == 0) {
        task.inverse[column + k] = 1.0F / scales[k];
      }
    }
    for (std::int64_t row = rows * stretch / stretches; row < end; ++row) {
      task.template encode<N>(row, column, scales);
    }
  }
}

template <class T, class Float8>
void run_quantize(const QuantizeFloat8Attrs& attrs, const Context& context, const Views& views) {
  const char* const name = "quantize_float8";
  const std::array<View, 2> all = {views.in[0], views.out[0]};
  const ScaleShape shape =
      scale_shape(attrs.dims, attrs.leading, all[0], cpu::common_inner_dims(all));
  const Quantization<T, Float8> task = {.x = {all[0], shape.inner},
                                        .codes = {all[1], shape.inner},
                                        .amax = cpu::flat<const float>(views.in[1]).data(),
                                        .inverse = cpu::flat<float>(views.out[1]).data(),
                                        .power_of_two = attrs.power_of_two};
  if (shape.sharing != Sharing::kColumns) {
    const QuantizeRows<T, Float8> body = {.task = task, .is_one = shape.sharing == Sharing::kAll};
    for_each_pack(context, name, all, shape.inner, body);
    return;
  }
  const View::Rows rows = all[0].rows(shape.inner);
  const std::int64_t stretches = num_row_stretches(rows);
  const bool fits = fits_packs(all, shape.inner);
  const std::int64_t packs = fits ? rows.width / kPack : rows.width;
  launch(context,
         name,
         blocks_for(context, stretches * packs),
         fits ? quantize_columns<kPack, T, Float8> : quantize_columns<1, T, Float8>,
         task,
         rows.count,
         packs,
         stretches);
}

// A matrix of codes, as it is stored.
struct Codes {
  const std::uint8_t* data;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t pitch;
};

// to[column, row] = from[row, column], of `from.rows` in a row.
__global__ static void turn(Codes from, std::uint8_t* to) {
  constexpr int kRows = kThreads / kTile;  // that a block moves at once
  __shared__ std::uint8_t tile[kTile][kTile + 4];
  const int line = static_cast<int>(threadIdx.x) / kTile;
  const int place = static_cast<int>(threadIdx.x) % kTile;
  const std::int64_t across = (from.columns + kTile - 1) / kTile;
  const std::int64_t tiles = (from.rows + kTile - 1) / kTile * across;
  for (std::int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    const std::int64_t row = i / across * kTile;
    const std::int64_t column = i % across * kTile;
    for (int k = line; k < kTile; k += kRows) {
      if (row + k < from.rows && column + place < from.columns) {
        tile[k][place] = from.data[(row + k) * from.pitch + column + place];
      }
    }
    __syncthreads();
    for (int k = line; k < kTile; k += kRows) {
      if (column + k < from.columns && row + place < from.rows) {
        to[(column + k) * from.rows + row + place] = tile[place][k];
      }
    }
    __syncthreads();  // before the next tile
  }
}

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

// A product of codes. Tensor cores read both factors along the sums: one that lies otherwise is
// turned over first. Where they do not take the shape, the codes are widened to bf16, which holds
// them, and the sums scaled afterwards.
class Float8Product {
 public:
  Float8Product(const ScaledMatmulAttrs& attrs,
                std::span<const View> operands,
                std::span<const View> results,
                std::byte* workspace)
      : gemm_(gemm_of(product_of(attrs), operands[0], operands[1], results[0])),
        takes_codes_(gemm_.k % kCodeGroup == 0 && gemm_.n % kCodeGroup == 0 &&
                     (gemm_.transpose_a || gemm_.pitch_a % kCodeGroup == 0) &&
                     (!gemm_.transpose_b || gemm_.pitch_b % kCodeGroup == 0) &&
                     gemm_.pitch_c % kCodeGroup == 0),
        by_row_(operands[2].num_dims > 0 || operands[3].num_dims > 0),
        parts_(workspace) {
    if (!takes_codes_) {
      wide_a_ = parts_.take<BFloat16>(gemm_.m * gemm_.k);
      wide_b_ = parts_.take<BFloat16>(gemm_.k * gemm_.n);
      sums_ = parts_.take<float>(gemm_.m * gemm_.n);
      return;
    }
    turned_a_ = gemm_.transpose_a ? parts_.take<std::uint8_t>(gemm_.m * gemm_.k) : nullptr;
    turned_b_ = gemm_.transpose_b ? nullptr : parts_.take<std::uint8_t>(gemm_.k * gemm_.n);
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
            .rows = gemm_.transpose_a ? gemm_.k : gemm_.m,
            .columns = gemm_.transpose_a ? gemm_.m : gemm_.k,
            .pitch = gemm_.pitch_a};
  }

  Codes codes_b(const View& b) const {
    return {.data = b.as<const std::uint8_t>(),
            .rows = gemm_.transpose_b ? gemm_.n : gemm_.k,
            .columns = gemm_.transpose_b ? gemm_.k : gemm_.n,
            .pitch = gemm_.pitch_b};
  }

  static void turn_over(const Context& context, const Codes& from, std::uint8_t* to) {
    const std::int64_t tiles =
        ((from.rows + kTile - 1) / kTile) * ((from.columns + kTile - 1) / kTile);
    launch(context, "transpose of codes", blocks_of_rows(context, tiles), turn, from, to);
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
    Float8Gemm product = {
        .gemm = gemm_, .a = views.in[0].dtype, .b = views.in[1].dtype, .by_row = by_row_};
    Float8Operands operands = {.a = views.in[0].data,
                               .b = views.in[1].data,
                               .inverse_a = scales(context, views.in[2], gemm_.m, spread_a_),
                               .inverse_b = scales(context, views.in[3], gemm_.n, spread_b_),
                               .c = views.out[0].data};
    if (turned_a_ != nullptr) {
      turn_over(context, codes_a(views.in[0]), turned_a_);
      operands.a = turned_a_;
      product.gemm.transpose_a = false;
      product.gemm.pitch_a = gemm_.k;
    }
    if (turned_b_ != nullptr) {
      turn_over(context, codes_b(views.in[1]), turned_b_);
      operands.b = turned_b_;
      product.gemm.transpose_b = true;
      product.gemm.pitch_b = gemm_.k;
    }
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
  Parts parts_;
  std::uint8_t* turned_a_ = nullptr;
  std::uint8_t* turned_b_ = nullptr;
  float* spread_a_ = nullptr;
  float* spread_b_ = nullptr;
  BFloat16* wide_a_ = nullptr;
  BFloat16* wide_b_ = nullptr;
  float* sums_ = nullptr;
};

}  // namespace
}  // namespace cuda

void run(const AmaxAttrs& attrs, cuda::Context& context, const Views& views) {
  const View& x = views.in[0];
  const ScaleShape shape =
      scale_shape(attrs.dims, attrs.leading, x, cpu::common_inner_dims(views.in.first(1)));
  float* const result = cpu::flat<float>(views.out[0]).data();
  cuda::with_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    if (cuda::fits_packs(views.in.first(1), shape.inner)) {
      cuda::run_amax<cuda::kPack, T>(context, shape, x, result);
    } else {
      cuda::run_amax<1, T>(context, shape, x, result);
    }
  });
}

void run(const QuantizeFloat8Attrs& attrs, cuda::Context& context, const Views& views) {
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    if (attrs.dtype == DType::kF8E4M3) {
      cuda::run_quantize<T, Float8E4M3>(attrs, context, views);
    } else {
      cuda::run_quantize<T, Float8E5M2>(attrs, context, views);
    }
  });
}

std::int64_t cuda_workspace_bytes(const ScaledMatmulAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results) {
  return cuda::Float8Product(attrs, operands, results, nullptr).workspace_bytes();
}

void run(const ScaledMatmulAttrs& attrs, cuda::Context& context, const Views& views) {
  cuda::Float8Product(attrs, views.in, views.out, views.workspace.data()).run(context, views);
}

}  // namespace tessera
