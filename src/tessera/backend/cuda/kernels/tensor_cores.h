#pragma once

// For the ops' _cuda.cu files: products of small matrices of bf16 on tensor cores. The 32 threads
// of a warp make one together, each with its part (fragment) of the matrices; all of them call
// these functions. With group = lane / 4 and two = 2 * (lane % 4), a lane has
//   of A (16 x 16)  rows group and group + 8, columns two and two + 1, then the same 8 columns on;
//   of B (16 x 8)   rows two and two + 1, then 8 rows on, of column group;
//   of C (16 x 8)   row group, then row group + 8, columns two and two + 1.
// Source: PTX ISA 8.0, mma.m16n8k16 and ldmatrix.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tessera/backend/cuda/kernels/launch.h"
#include "tessera/base/half.h"

namespace tessera::cuda {

#if defined(__CUDACC__) || defined(TESSERA_EMULATED_CUDA)

inline constexpr int kLanes = 32;

// A register has two elements, the first in its lower half.
struct FragmentA {
  std::uint32_t at[4];
};

struct FragmentB {
  std::uint32_t at[2];
};

struct FragmentC {
  float at[4];
};

// Fragments of two B, of columns 0 to 7 and 8 to 15.
struct TwoFragmentsB {
  FragmentB at[2];
};

__device__ inline int lane() {
  return static_cast<int>(threadIdx.x) % kLanes;
}

// Where the lane's elements of A and C stand.
__device__ inline int fragment_row() {
  return lane() / 4;
}

__device__ inline int fragment_column() {
  return 2 * (lane() % 4);
}

// c += a b, summed in f32.
__device__ inline void multiply_add(FragmentC& c, const FragmentA& a, const FragmentB& b) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
      : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
#else
  const auto all_a = exchange(a);
  const auto all_b = exchange(b);
  const auto element = [](std::uint32_t two, int which) {
    return to_float(BFloat16{static_cast<std::uint16_t>(two >> (16U * which))});
  };
  for (int i = 0; i < 4; ++i) {
    const int row = fragment_row() + 8 * (i / 2);
    const int column = fragment_column() + i % 2;
    for (int k = 0; k < 16; ++k) {
      const FragmentA& from_a = all_a[row % 8 * 4 + k % 8 / 2];
      const FragmentB& from_b = all_b[column * 4 + k % 8 / 2];
      c.at[i] = std::fma(element(from_a.at[row / 8 + 2 * (k / 8)], k % 2),
                         element(from_b.at[k / 8], k % 2),
                         c.at[i]);
    }
  }
#endif
}

// Four 8 x 8 matrices in shared memory, one element of which is 2 bytes: lane 8 i + r gives where
// row r of matrix i begins (a multiple of 16 bytes), and lane l gets elements 2 * (l % 4) and the
// next of row l / 4 of each, or where it is transposed, of column l / 4.
template <bool kTransposed>
__device__ FragmentA load_matrices(const std::uint16_t* row) {
  FragmentA result;
#ifdef __CUDACC__
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result.at[0]), "=r"(result.at[1]), "=r"(result.at[2]), "=r"(result.at[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result.at[0]), "=r"(result.at[1]), "=r"(result.at[2]), "=r"(result.at[3])
                 : "r"(address)
                 : "memory");
  }
#else
  const auto rows = exchange(row);
  for (int i = 0; i < 4; ++i) {
    const auto element = [&](int which) -> std::uint32_t {
      const int two = fragment_column() + which;
      return kTransposed ? rows[8 * i + two][fragment_row()] : rows[8 * i + fragment_row()][two];
    };
    result.at[i] = element(1) << 16U | element(0);
  }
#endif
  return result;
}

// A matrix in shared memory with rows `kPitch` elements apart.
template <int kPitch>
struct SharedMatrix {
  std::uint16_t* data;

  // The 16 x 16 elements from there on, as A.
  __device__ FragmentA a(int row, int column) const {
    return load_matrices<false>(at_half(row, column));
  }

  // The same as two B of 16 x 8.
  __device__ TwoFragmentsB b(int row, int column) const {
    const FragmentA all = load_matrices<true>(at_half(row, column));
    return {{{all.at[0], all.at[1]}, {all.at[2], all.at[3]}}};
  }

  // The transposed 16 x 16 elements as two B: of B's rows (our columns) from `column` on, and
  // columns (our rows) from `row` on.
  __device__ TwoFragmentsB b_transposed(int row, int column) const {
    const int line = row + lane() / 16 * 8 + lane() % 8;
    const FragmentA all = load_matrices<false>(data + line * kPitch + column + lane() / 8 % 2 * 8);
    return {{{all.at[0], all.at[1]}, {all.at[2], all.at[3]}}};
  }

 private:
  // What the lane gives for the four quarters: the upper two rows of eight, then the lower, of the
  // left columns, then of the right.
  const __device__ std::uint16_t* at_half(int row, int column) const {
    return data + (row + lane() % 16) * kPitch + column + lane() / 16 * 8;
  }
};

#endif

}  // namespace tessera::cuda
