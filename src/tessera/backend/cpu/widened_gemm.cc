#include "tessera/backend/cpu/widened_gemm.h"

#include <algorithm>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/base/half.h"

namespace tessera::cpu {
namespace {

constexpr std::int64_t kBlock = 1024;

// A matrix as it is stored.
template <class T>
struct Stored {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t pitch = 0;

  T* row(std::int64_t i) const { return data + i * pitch; }
};

template <class From, class To, class Convert>
void convert_rows(Context& context,
                  const Stored<From>& from,
                  const Stored<To>& to,
                  const Convert& convert) {
  parallel_ranges(
      context.threads(), {.count = from.rows, .elements = from.columns}, [&](Range range) {
        for (std::int64_t i = range.begin; i < range.end; ++i) {
          const From* const source = from.row(i);
          To* const target = to.row(i);
          for (std::int64_t j = 0; j < from.columns; ++j) {
            target[j] = convert(source[j], target[j]);
          }
        }
      });
}

// Part of a dim that is cut into stretches of kBlock.
struct Stretch {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

Stretch stretch_at(std::int64_t begin, std::int64_t size) {
  return {.begin = begin, .size = std::min(kBlock, size - begin)};
}

// Rows of A or columns of B as they are stored: `across` says that they are stored columns.
Stored<const BFloat16> part_of(
    const void* data, std::int64_t pitch, std::int64_t k, bool across, Stretch part) {
  const auto* const values = static_cast<const BFloat16*>(data);
  return across ? Stored<const BFloat16>{values + part.begin, k, part.size, pitch}
                : Stored<const BFloat16>{values + part.begin * pitch, part.size, k, pitch};
}

// The product of m rows and n columns in f32.
Gemm block_gemm(const Gemm& gemm, std::int64_t m, std::int64_t n) {
  const bool in_place = gemm.output == DType::kF32;
  return {.m = m,
          .n = n,
          .k = gemm.k,
          .transpose_a = gemm.transpose_a,
          .transpose_b = gemm.transpose_b,
          .pitch_a = gemm.transpose_a ? m : gemm.k,
          .pitch_b = gemm.transpose_b ? gemm.k : n,
          .pitch_c = in_place ? gemm.pitch_c : n,
          .accumulate = in_place && gemm.accumulate};
}

// Where the parts of the workspace begin, in bytes.
struct Workspace {
  std::int64_t b = 0;
  std::int64_t c = 0;
  std::int64_t gemm = 0;
};

Workspace workspace_of(const Gemm& gemm) {
  const auto floats = [](std::int64_t count) {
    constexpr std::int64_t kLine = 64;
    return (count * std::int64_t{sizeof(float)} + kLine - 1) / kLine * kLine;
  };
  const std::int64_t m = std::min(kBlock, gemm.m);
  const std::int64_t n = std::min(kBlock, gemm.n);
  Workspace places;
  places.b = floats(m * gemm.k);
  places.c = places.b + floats(n * gemm.k);
  places.gemm = places.c + (gemm.output == DType::kF32 ? 0 : floats(m * n));
  return places;
}

}  // namespace

std::int64_t widened_gemm_workspace_bytes(Context& context, const Gemm& gemm) {
  std::int64_t bytes = 0;
  for (const std::int64_t m : {std::min(kBlock, gemm.m), gemm.m % kBlock}) {
    for (const std::int64_t n : {std::min(kBlock, gemm.n), gemm.n % kBlock}) {
      if (m > 0 && n > 0) {
        bytes = std::max(bytes, gemm_workspace_bytes(context, block_gemm(gemm, m, n)));
      }
    }
  }
  return workspace_of(gemm).gemm + bytes;
}

void run_widened_gemm(Context& context,
                      const Gemm& gemm,
                      const void* a,
                      const void* b,
                      void* c,
                      std::span<std::byte> workspace) {
  const Workspace places = workspace_of(gemm);
  const auto floats_at = [&](std::int64_t place) {
    return reinterpret_cast<float*>(workspace.data() + place);
  };
  const auto widen = [](BFloat16 value, float) { return to_float(value); };
  const auto round = [](float value, BFloat16) { return to_bfloat16(value); };
  const auto add = [](float value, BFloat16 sum) { return to_bfloat16(value + to_float(sum)); };
  for (std::int64_t column = 0; column < gemm.n; column += kBlock) {
    const Stretch n = stretch_at(column, gemm.n);
    const auto narrow_b = part_of(b, gemm.pitch_b, gemm.k, !gemm.transpose_b, n);
    const Stored<float> wide_b = {
        floats_at(places.b), narrow_b.rows, narrow_b.columns, narrow_b.columns};
    convert_rows(context, narrow_b, wide_b, widen);
    for (std::int64_t row = 0; row < gemm.m; row += kBlock) {
      const Stretch m = stretch_at(row, gemm.m);
      const auto narrow_a = part_of(a, gemm.pitch_a, gemm.k, gemm.transpose_a, m);
      const Stored<float> wide_a = {
          floats_at(0), narrow_a.rows, narrow_a.columns, narrow_a.columns};
      convert_rows(context, narrow_a, wide_a, widen);
      const Gemm block = block_gemm(gemm, m.size, n.size);
      const std::int64_t place = row * gemm.pitch_c + column;
      const bool in_place = gemm.output == DType::kF32;
      float* const wide_c = in_place ? static_cast<float*>(c) + place : floats_at(places.c);
      run_gemm(context,
               block,
               wide_a.data,
               wide_b.data,
               wide_c,
               workspace.subspan(static_cast<std::size_t>(places.gemm)));
      if (in_place) {
        continue;
      }
      const Stored<const float> sums = {wide_c, m.size, n.size, n.size};
      const Stored<BFloat16> target = {
          static_cast<BFloat16*>(c) + place, m.size, n.size, gemm.pitch_c};
      if (gemm.accumulate) {
        convert_rows(context, sums, target, add);
      } else {
        convert_rows(context, sums, target, round);
      }
    }
  }
}

}  // namespace tessera::cpu
