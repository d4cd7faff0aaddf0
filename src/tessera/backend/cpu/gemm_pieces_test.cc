#include "tessera/backend/cpu/gemm_pieces.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/gemm.h"
#include "tessera/base/format.h"
#include "tessera/base/half.h"

namespace tessera::cpu {
namespace {

// How often each result is of a piece, and whether each piece is of one of the kinds.
void check_cover(const Gemm& gemm, int threads) {
  const GemmPieces pieces(gemm, threads);
  std::vector<int> covers(static_cast<std::size_t>(gemm.m * gemm.n));
  std::vector<Gemm> kinds;
  for (const std::int64_t piece : pieces.kinds()) {
    kinds.push_back(pieces[piece]);
  }
  for (std::int64_t piece = 0; piece < pieces.count(); ++piece) {
    const Gemm part = pieces[piece];
    ASSERT_TRUE(part.m > 0 && part.n > 0 && part.k == gemm.k);
    ASSERT_TRUE(std::ranges::find(kinds, part) != kinds.end()) << piece;
    for (std::int64_t row = pieces.row(piece); row < pieces.row(piece) + part.m; ++row) {
      for (std::int64_t i = 0; i < part.n; ++i) {
        ++covers.at(static_cast<std::size_t>(row * gemm.n + pieces.column(piece) + i));
      }
    }
  }
  EXPECT_TRUE(std::ranges::all_of(covers, [](int times) { return times == 1; }));
}

TEST(GemmPieces, CoverEachResultOnce) {
  for (const std::int64_t m : {1, 5, 255, 257, 700, 2048}) {
    for (const std::int64_t n : {1, 31, 256, 1111}) {
      for (const std::int64_t k : {1, 300, 5000}) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          for (const int threads : {1, 2, 3, 64}) {
            SCOPED_TRACE(format("{} x {} x {}, {} threads", m, n, k, threads));
            check_cover({.m = m, .n = n, .k = k, .input = dtype}, threads);
            if (testing::Test::HasFailure()) {
              return;
            }
          }
        }
      }
    }
  }
}

// Products of a training step have pieces for threads that are slow, small ones stay whole.
TEST(GemmPieces, AreSeveralForEachThreadWhereTheProductIsLarge) {
  const auto count = [](std::int64_t m, std::int64_t n, std::int64_t k, int threads) {
    return GemmPieces({.m = m, .n = n, .k = k}, threads).count();
  };
  EXPECT_EQ(count(2048, 768, 256, 1), 1);
  EXPECT_EQ(count(2048, 768, 256, 2), 24);
  EXPECT_GE(count(768, 256, 2048, 2), 8);
  EXPECT_GE(count(256, 256, 2048, 2), 4);
  EXPECT_GE(count(2048, 256, 256, 16), 16);
  EXPECT_EQ(count(64, 64, 64, 2), 1);
}

// Small whole numbers, whose sums f32 holds exactly in any order.
struct Factor {
  Factor(std::int64_t rows, std::int64_t columns, std::int64_t seed)
      : pitch(columns + 3), values(static_cast<std::size_t>(rows * pitch)) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>((static_cast<std::int64_t>(i) * 7919 + seed) % 7 - 3);
    }
  }

  float at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row * pitch + column)];
  }

  // As a product takes them.
  std::vector<std::byte> bytes(DType dtype) const {
    std::vector<std::byte> result(values.size() * size_bytes(dtype));
    if (dtype == DType::kF32) {
      std::memcpy(result.data(), values.data(), result.size());
    } else {
      std::ranges::transform(values, reinterpret_cast<BFloat16*>(result.data()), to_bfloat16);
    }
    return result;
  }

  std::int64_t pitch;
  std::vector<float> values;
};

// What row `i` of a and column `j` of b add to `sum`, from the first to the last.
float add_products(
    float sum, const Gemm& gemm, const Factor& a, const Factor& b, std::int64_t i, std::int64_t j) {
  for (std::int64_t l = 0; l < gemm.k; ++l) {
    sum +=
        (gemm.transpose_a ? a.at(l, i) : a.at(i, l)) * (gemm.transpose_b ? b.at(j, l) : b.at(l, j));
  }
  return sum;
}

void check_product(Context& context, Gemm gemm) {
  const Factor a(gemm.transpose_a ? gemm.k : gemm.m, gemm.transpose_a ? gemm.m : gemm.k, 1);
  const Factor b(gemm.transpose_b ? gemm.n : gemm.k, gemm.transpose_b ? gemm.k : gemm.n, 5);
  Factor c(gemm.m, gemm.n, 2);
  gemm.pitch_a = a.pitch;
  gemm.pitch_b = b.pitch;
  gemm.pitch_c = c.pitch;
  std::vector<float> expected = c.values;
  for (std::int64_t i = 0; i < gemm.m; ++i) {
    for (std::int64_t j = 0; j < gemm.n; ++j) {
      const float start = gemm.accumulate ? c.at(i, j) : 0.0F;
      expected[static_cast<std::size_t>(i * c.pitch + j)] = add_products(start, gemm, a, b, i, j);
    }
  }
  std::vector<std::byte> workspace(static_cast<std::size_t>(gemm_workspace_bytes(context, gemm)));
  run_gemm(context,
           gemm,
           a.bytes(gemm.input).data(),
           b.bytes(gemm.input).data(),
           c.values.data(),
           workspace);
  EXPECT_EQ(c.values, expected);
}

TEST(GemmPieces, MakeUpTheProduct) {
  for (const int threads : {1, 2, 3}) {
    Context context(threads);
    for (const auto& [m, n, k] :
         {std::array<std::int64_t, 3>{300, 520, 70}, {65, 1111, 130}, {513, 40, 520}}) {
      for (int form = 0; form < 16; ++form) {
        const Gemm gemm = {.m = m,
                           .n = n,
                           .k = k,
                           .transpose_a = (form & 1) != 0,
                           .transpose_b = (form & 2) != 0,
                           .input = (form & 4) != 0 ? DType::kBF16 : DType::kF32,
                           .accumulate = (form & 8) != 0};
        SCOPED_TRACE(format("{} x {} x {}, form {}, {} threads", m, n, k, form, threads));
        ASSERT_TRUE(threads == 1 || GemmPieces(gemm, threads).count() > 1);
        check_product(context, gemm);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cpu
