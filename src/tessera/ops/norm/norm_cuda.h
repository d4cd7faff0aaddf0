#pragma once

// What the CUDA kernels of norms share. A team of threads takes a row. It is reduced before any of
// it is written, and a thread writes what it read itself: y, h and dx may lie over any operand of
// their shape.

#include <cstdint>
#include <type_traits>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/kernels/largest.h"
#include "tessera/backend/cuda/kernels/row_teams.h"
#include "tessera/ops/float8/codes_cuda.h"
#include "tessera/ops/norm/norm_operands.h"

namespace tessera::cuda {

// What a kernel knows of its work when it is compiled. Kernels have it as bits: nvcc cannot name
// instances of templates with parameters of a class.
struct NormTraits {
  bool centered = false;  // a layer norm; it has no results in 8-bit floats
  bool rows = true;       // makes y or dx; without it, backward sums for the weights alone
  bool residual = false;  // adds r to x, or to dx
  bool weights = false;   // backward: sums for the gradients of gain and bias
  bool whole = false;     // packs of rows move as one
  bool codes = false;     // of y or dx, in whole rows of 16 bits

  constexpr bool takes_codes() const { return !centered && rows; }

  constexpr unsigned bits() const {
    return (centered ? 1U : 0U) | (rows ? 2U : 0U) | (residual ? 4U : 0U) | (weights ? 8U : 0U) |
           (whole ? 16U : 0U) | (codes ? 32U : 0U);
  }

  static constexpr NormTraits of(unsigned bits) {
    return {.centered = (bits & 1U) != 0,
            .rows = (bits & 2U) != 0,
            .residual = (bits & 4U) != 0,
            .weights = (bits & 8U) != 0,
            .whole = (bits & 16U) != 0,
            .codes = (bits & 32U) != 0};
  }
};

// Where a kernel finds what it reads and writes; without a place what its norm lacks.
template <class T>
struct NormTask {
  Matrix<const T> dy;
  Matrix<const T> x;
  Matrix<const T> r;
  const T* residual_bias;
  const T* gain;
  const T* bias;
  float* mean;
  float* rstd;
  Matrix<T> out;  // y or dx
  Matrix<T> h;
  float* amax;      // of out
  RowCodes codes;   // of out
  float* partials;  // of the gain's gradient, by stretch, then of the bias's
  float eps;
  float gain_offset;  // of a norm that is not centered
};

// The numbers of a tensor of f32, or null where the norm lacks it.
inline float* numbers_of(const View& view) {
  return view.data == nullptr ? nullptr : cpu::flat<float>(view).data();
}

// Runs backward, or sums for the weights alone. `whole`: whether packs of rows move as one.
template <class T>
void run_norm_backward(const Context& context,
                       const NormForm& norm,
                       const NormOperands& of,
                       const NormTask<T>& task,
                       bool whole);

#if defined(__CUDACC__) || defined(TESSERA_EMULATED_CUDA)

struct RowStatistics {
  float mean = 0.0F;  // 0 unless the norm is centered
  float rstd = 0.0F;
};

// What the gain scales: (x - mean) rstd.
template <unsigned kBits>
__device__ float standardized(float x, const RowStatistics& of_row) {
  constexpr NormTraits kTraits = NormTraits::of(kBits);
  return (kTraits.centered ? x - of_row.mean : x) * of_row.rstd;
}

// A row of a task.
template <class Team, class T, unsigned kBits>
struct NormRow {
  static constexpr NormTraits kTraits = NormTraits::of(kBits);

  const NormTask<T>& task;
  std::int64_t row;
  std::int64_t width;

  __device__ Words<T> read(const Matrix<const T>& from, std::int64_t column) const {
    return read_pack<kTraits.whole>(from.at(row, column), width - column);
  }

  __device__ Words<T> read(const T* vector, std::int64_t column) const {
    return read_pack<kTraits.whole>(vector + column, width - column);
  }

  // What a pack of columns is multiplied by.
  __device__ Floats<kPack> with_offset(Floats<kPack> gains) const {
    if constexpr (!kTraits.centered) {
      for (int i = 0; i < kPack; ++i) {
        gains.at[i] += task.gain_offset;
      }
    }
    return gains;
  }

  // The k-th pack of the thread, of y or dx. `kept` holds it where codes are made of it.
  template <class Kept>
  __device__ void write(
      int k, std::int64_t column, const Floats<kPack>& values, Kept& kept, Largest& largest) const {
    store_pack(task.out.at(row, column), values, width - column, kTraits.whole);
    if (!kTraits.centered && (kTraits.codes || task.amax != nullptr)) {
      largest.take(narrow<T>(values));
    }
    if constexpr (kTraits.codes) {
      kept.take(k, [&] { return Words<T>::of(values); });
    }
  }

  template <class Kept>
  __device__ void write_codes(const Kept& kept, const Largest& largest) const {
    task.codes.template write<Team, kTraits.whole>(
        row, width, largest, [&](int k, std::int64_t column) {
          return kept.get(k, [&] {
            return read_pack<kTraits.whole>(task.out.at(row, column), width - column);
          });
        });
  }
};

#endif

// body(std::integral_constant<unsigned, bits>()) with these traits and what the launch knows of
// packs and codes.
template <class T, unsigned kBits, class Body>
void with_packs(bool whole, const RowCodes& codes, const Body& body) {
  const auto with = [&](auto is_whole, auto makes_codes) {
    constexpr NormTraits kTraits = NormTraits::of(kBits);
    constexpr NormTraits kAll = {.centered = kTraits.centered,
                                 .rows = kTraits.rows,
                                 .residual = kTraits.residual,
                                 .weights = kTraits.weights,
                                 .whole = decltype(is_whole)::value,
                                 .codes = decltype(makes_codes)::value};
    body(std::integral_constant<unsigned, kAll.bits()>());
  };
  if (codes.inverse == nullptr) {
    with_bool(whole, [&](auto is_whole) { with(is_whole, std::false_type()); });
  } else if constexpr (NormTraits::of(kBits).takes_codes() && sizeof(T) == 2) {
    with(std::true_type(), std::true_type());
  }
}

}  // namespace tessera::cuda
