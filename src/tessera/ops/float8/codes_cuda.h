#pragma once

// For the ops' _cuda.cu files: codes in 8-bit floats.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/kernels/largest.h"
#include "tessera/backend/cuda/kernels/row_teams.h"
#include "tessera/base/float8.h"
#include "tessera/ir/view.h"
#include "tessera/ops/float8/float8.h"
#include "tessera/ops/float8/float8_results.h"
#include "tessera/ops/float8/scales.h"

namespace tessera::cuda {

#if defined(__CUDACC__) || defined(TESSERA_EMULATED_CUDA)

// Two codes as to_float8() rounds them, the first in the lower half; but for a NaN's sign.
template <class Float8>
__device__ std::uint32_t float8_pair(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint16_t pair = 0;
  if constexpr (Float8::kHasInfinity) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  return to_float8<Float8>(low).bits | static_cast<std::uint32_t>(to_float8<Float8>(high).bits)
                                           << 8U;
#endif
}

// The codes of a pack times its scales.
template <class Float8, int N>
__device__ Pack<std::uint8_t, N> encode(const Floats<N>& values, const Floats<N>& scales) {
  Pack<std::uint8_t, N> codes;
  if constexpr (N == 1) {
    codes.at[0] = static_cast<std::uint8_t>(float8_pair<Float8>(values.at[0] * scales.at[0], 0.0F));
  } else {
    std::array<std::uint16_t, N / 2> pairs;
    for (int i = 0; i < N; i += 2) {
      pairs[static_cast<std::size_t>(i / 2)] = static_cast<std::uint16_t>(
          float8_pair<Float8>(values.at[i] * scales.at[i], values.at[i + 1] * scales.at[i + 1]));
    }
    codes = std::bit_cast<Pack<std::uint8_t, N>>(pairs);
  }
  return codes;
}

// The first `count` bytes of a pack; all of them, in one access, if it is whole.
template <int N>
__device__ void store_bytes(std::uint8_t* place,
                            const Pack<std::uint8_t, N>& bytes,
                            std::int64_t count,
                            bool whole) {
  if (whole) {
    *reinterpret_cast<Pack<std::uint8_t, N>*>(place) = bytes;
    return;
  }
  for (int i = 0; i < N && i < count; ++i) {
    place[i] = bytes.at[i];
  }
}

// Where the codes of rows go, each with a scale of its own.
struct RowCodes {
  Matrix<std::uint8_t> codes;
  float* inverse = nullptr;
  bool is_e5m2 = false;
  bool power_of_two = true;

  RowCodes() = default;

  // `views` are codes, as rows of `inner` dims, and what they are to be multiplied by.
  RowCodes(const View& views, const View& inverse_view, std::int32_t inner, bool rounded_down)
      : codes(views, inner),
        inverse(cpu::flat<float>(inverse_view).data()),
        is_e5m2(views.dtype == DType::kF8E5M2),
        power_of_two(rounded_down) {}

  // Writes a row that a team has: get(k, column) is its k-th pack, rounded as it lies in memory,
  // and `largest` what the thread met in them. Every thread of the team calls it.
  template <class Team, bool kWhole, class Get>
  __device__ void write(std::int64_t row,
                        std::int64_t width,
                        const Largest& largest,
                        const Get& get) const {
    const float most = is_e5m2 ? Float8E5M2::kMax : Float8E4M3::kMax;
    const float scale = scale_of(largest.of_team<Team>(), most, power_of_two);
    if (threadIdx.x % Team::kSize == 0) {
      inverse[row] = 1.0F / scale;
    }
    Floats<kPack> scales;
    for (int i = 0; i < kPack; ++i) {
      scales.at[i] = scale;
    }
    each_column<Team>(width, [&](int k, std::int64_t column) {
      const Floats<kPack> values = get(k, column);
      store_bytes(codes.at(row, column),
                  is_e5m2 ? encode<Float8E5M2>(values, scales) : encode<Float8E4M3>(values, scales),
                  width - column,
                  kWhole);
    });
  }
};

// The codes of its first results that an op makes along with them: its kernel does where rows of 16
// bits move in packs, elsewhere that of quantize_float8 behind it.
class CodesOfResults {
 public:
  // As make_float8() has them, of `count` results; `whole`: whether all that the kernel reads and
  // writes beside codes moves in packs.
  CodesOfResults(const Float8Results& wanted,
                 std::span<const View> results,
                 std::size_t count,
                 bool whole)
      : wanted_(wanted),
        of_(results.first(wanted.codes ? count : 0)),
        made_(results.last(2 * of_.size())),
        in_kernel_(!of_.empty() && whole && of_[0].dtype == DType::kBF16) {
    for (std::size_t i = 0; i < of_.size(); ++i) {
      in_kernel_ = in_kernel_ && fits_packs(made_.subspan(2 * i, 1), 1);
    }
  }

  bool in_kernel() const { return in_kernel_; }

  // What the kernel writes of the i-th result; without a place unless it does.
  RowCodes of_kernel(std::size_t i = 0) const {
    return in_kernel_
               ? RowCodes(made_[2 * i], made_[2 * i + 1], 1, code_attrs(wanted_).power_of_two)
               : RowCodes();
  }

  // Behind the kernel.
  void make_rest(Context& context) const {
    for (std::size_t i = 0; i < of_.size() && !in_kernel_; ++i) {
      run(code_attrs(wanted_),
          context,
          {.in = of_.subspan(i, 1), .out = made_.subspan(2 * i, 2), .workspace = {}});
    }
  }

 private:
  const Float8Results& wanted_;
  std::span<const View> of_;
  std::span<const View> made_;  // codes and inverse of each
  bool in_kernel_;
};

#endif

}  // namespace tessera::cuda
