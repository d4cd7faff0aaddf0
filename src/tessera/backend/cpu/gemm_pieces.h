#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "tessera/ops/gemm.h"

namespace tessera::cpu {

// How a product is cut into pieces that threads take: whole sums of some rows and columns, so that
// oneDNN computes each on one thread, in an order of its own. The cut depends on shape and number
// of threads alone.
class GemmPieces {
 public:
  GemmPieces(const Gemm& gemm, int threads) : gemm_(gemm), rows_(gemm.m), columns_(gemm.n) {
    if (threads > 1) {
      rows_ = std::min(gemm.m, gemm.input == DType::kBF16 ? 2 * kSide : kSide);
      columns_ = std::min(gemm.n, kSide);
      grow();
      shrink(threads);
      rows_ = even(gemm.m, rows_);
      columns_ = even(gemm.n, columns_);
    }
  }

  std::int64_t across() const { return quotient_up(gemm_.n, columns_); }

  std::int64_t count() const { return quotient_up(gemm_.m, rows_) * across(); }

  // The product of a piece; pieces differ in size at the ends alone.
  Gemm operator[](std::int64_t piece) const {
    Gemm part = gemm_;
    part.m = std::min(rows_, gemm_.m - row(piece));
    part.n = std::min(columns_, gemm_.n - column(piece));
    return part;
  }

  std::int64_t row(std::int64_t piece) const { return piece / across() * rows_; }

  std::int64_t column(std::int64_t piece) const { return piece % across() * columns_; }

  // The pieces of all sizes that there are: one of the first, and those at the ends.
  std::array<std::int64_t, 4> kinds() const {
    return {0, across() - 1, count() - across(), count() - 1};
  }

 private:
  static constexpr std::int64_t kSide = 256;  // oneDNN is nearly as fast on these as on the whole
  static constexpr std::int64_t kLine = 16;   // elements of f32 in a cache line

  static std::int64_t quotient_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

  std::int64_t flop() const { return 2 * rows_ * columns_ * gemm_.k; }

  // Longer pieces of products with few rows or columns, until they are worth the taking.
  void grow() {
    constexpr std::int64_t kEnough = std::int64_t{1} << 24U;
    while (flop() < kEnough && (rows_ < gemm_.m || columns_ < gemm_.n)) {
      const bool wider = rows_ >= gemm_.m || (columns_ < gemm_.n && columns_ <= rows_);
      (wider ? columns_ : rows_) *= 2;
      rows_ = std::min(rows_, gemm_.m);
      columns_ = std::min(columns_, gemm_.n);
    }
  }

  // Smaller pieces where there are few: four a thread as long as they are large, else one.
  void shrink(int threads) {
    constexpr std::int64_t kLarge = std::int64_t{3} << 25U;
    constexpr std::int64_t kLeast = std::int64_t{1} << 22U;
    while ((count() < 4 * std::int64_t{threads} && flop() >= kLarge) ||
           (count() < threads && flop() >= kLeast)) {
      const bool flatter = rows_ >= columns_;
      std::int64_t& side = flatter ? rows_ : columns_;
      if (side < 2 * kLine) {
        return;
      }
      side = quotient_up(side, 2);
    }
  }

  // The size of pieces of nearly equal sizes, as many as there are of size `piece`.
  static std::int64_t even(std::int64_t size, std::int64_t piece) {
    const std::int64_t pieces = quotient_up(size, piece);
    return pieces == 1 ? size : quotient_up(quotient_up(size, pieces), kLine) * kLine;
  }

  Gemm gemm_;
  std::int64_t rows_;
  std::int64_t columns_;
};

}  // namespace tessera::cpu
