#include "tessera/backend/cpu/widened_gemm.h"

#include <algorithm>
#include <array>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/base/error.h"
#include "tessera/base/float8.h"
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
  parallel_ranges(context.team(), {.count = from.rows, .elements = from.columns}, [&](Range range) {
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
template <class T>
Stored<const T> part_of(
    const T* values, std::int64_t pitch, std::int64_t k, bool across, Stretch part) {
  return across ? Stored<const T>{values + part.begin, k, part.size, pitch}
                : Stored<const T>{values + part.begin * pitch, part.size, k, pitch};
}

// Whether sums are C as they are.
bool sums_in_place(const Gemm& gemm) {
  return gemm.output == DType::kF32 && !is_float8(gemm.input);
}

// The product of m rows and n columns in f32.
Gemm block_gemm(const Gemm& gemm, std::int64_t m, std::int64_t n) {
  const bool in_place = sums_in_place(gemm);
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
  places.gemm = places.c + (sums_in_place(gemm) ? 0 : floats(m * n));
  return places;
}

template <class Float8>
std::array<float, 256> values_of_codes() {
  std::array<float, 256> values = {};
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = to_float(Float8{static_cast<std::uint8_t>(i)});
  }
  return values;
}

float widen(BFloat16 value) {
  return to_float(value);
}

template <class Float8>
float widen(Float8 code) {
  static const std::array<float, 256> kValues = values_of_codes<Float8>();
  return kValues[code.bits];
}

// A product whose blocks are computed one after the other.
template <class A, class B>
struct Blocks {
  Context& context;
  const Gemm& gemm;
  const A* a;
  const B* b;
  void* c;
  std::span<std::byte> workspace;

  float* floats_at(std::int64_t place) const {
    return reinterpret_cast<float*>(workspace.data() + place);
  }

  template <class T>
  const Stored<float> widened(const Stored<const T>& narrow, std::int64_t place) const {
    const Stored<float> wide = {floats_at(place), narrow.rows, narrow.columns, narrow.columns};
    convert_rows(context, narrow, wide, [](T value, float) { return widen(value); });
    return wide;
  }

  // Calls finish(rows, columns, sums) for each block, unless the sums are C.
  template <class Finish>
  void run(const Finish& finish) const {
    const Workspace places = workspace_of(gemm);
    const bool in_place = sums_in_place(gemm);
    for (std::int64_t column = 0; column < gemm.n; column += kBlock) {
      const Stretch n = stretch_at(column, gemm.n);
      const Stored<float> wide_b =
          widened(part_of(b, gemm.pitch_b, gemm.k, !gemm.transpose_b, n), places.b);
      for (std::int64_t row = 0; row < gemm.m; row += kBlock) {
        const Stretch m = stretch_at(row, gemm.m);
        const Stored<float> wide_a =
            widened(part_of(a, gemm.pitch_a, gemm.k, gemm.transpose_a, m), 0);
        float* const sums =
            in_place ? static_cast<float*>(c) + row * gemm.pitch_c + column : floats_at(places.c);
        run_gemm(context,
                 block_gemm(gemm, m.size, n.size),
                 wide_a.data,
                 wide_b.data,
                 sums,
                 workspace.subspan(static_cast<std::size_t>(places.gemm)));
        if (!in_place) {
          finish(m, n, Stored<const float>{sums, m.size, n.size, n.size});
        }
      }
    }
  }
};

// Elements of C as they are added to and written.
float accumulated(float value) {
  return value;
}

float accumulated(BFloat16 value) {
  return to_float(value);
}

void round_to(float value, float& target) {
  target = value;
}

void round_to(float value, BFloat16& target) {
  target = to_bfloat16(value);
}

// Writes a block of scaled sums to C, of dtype T.
template <class T>
class Scaling {
 public:
  Scaling(Context& context, const Gemm& gemm, const Float8Factor& a, const Float8Factor& b, void* c)
      : context_(context), gemm_(gemm), a_(a), b_(b), c_(static_cast<T*>(c)) {}

  void operator()(Stretch rows, Stretch columns, const Stored<const float>& sums) const {
    parallel_ranges(
        context_.team(), {.count = rows.size, .elements = columns.size}, [&](Range range) {
          for (std::int64_t i = range.begin; i < range.end; ++i) {
            write_row(rows.begin + i, columns, sums.row(i));
          }
        });
  }

 private:
  void write_row(std::int64_t row, Stretch columns, const float* sums) const {
    const float of_row = a_.inverse[a_.is_one ? 0 : row];
    const float* const of_columns = b_.inverse + (b_.is_one ? 0 : columns.begin);
    const std::int64_t step = b_.is_one ? 0 : 1;
    T* const target = c_ + row * gemm_.pitch_c + columns.begin;
    for (std::int64_t j = 0; j < columns.size; ++j) {
      T rounded;
      round_to(sums[j] * (of_row * of_columns[j * step]), rounded);
      if (gemm_.accumulate) {
        round_to(accumulated(target[j]) + accumulated(rounded), rounded);
      }
      target[j] = rounded;
    }
  }

  Context& context_;
  const Gemm& gemm_;
  const Float8Factor& a_;
  const Float8Factor& b_;
  T* c_;
};

template <class A, class B>
void run_float8_blocks(const Blocks<A, B>& blocks, const Float8Factor& a, const Float8Factor& b) {
  if (blocks.gemm.output == DType::kF32) {
    blocks.run(Scaling<float>(blocks.context, blocks.gemm, a, b, blocks.c));
  } else {
    blocks.run(Scaling<BFloat16>(blocks.context, blocks.gemm, a, b, blocks.c));
  }
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
  const auto round = [](float value, BFloat16) { return to_bfloat16(value); };
  const auto add = [](float value, BFloat16 sum) { return to_bfloat16(value + to_float(sum)); };
  const Blocks<BFloat16, BFloat16> blocks = {.context = context,
                                             .gemm = gemm,
                                             .a = static_cast<const BFloat16*>(a),
                                             .b = static_cast<const BFloat16*>(b),
                                             .c = c,
                                             .workspace = workspace};
  blocks.run([&](Stretch rows, Stretch columns, const Stored<const float>& sums) {
    const Stored<BFloat16> target = {
        static_cast<BFloat16*>(c) + rows.begin * gemm.pitch_c + columns.begin,
        rows.size,
        columns.size,
        gemm.pitch_c};
    if (gemm.accumulate) {
      convert_rows(context, sums, target, add);
    } else {
      convert_rows(context, sums, target, round);
    }
  });
}

void run_float8_gemm(Context& context,
                     const Gemm& gemm,
                     const Float8Factor& a,
                     const Float8Factor& b,
                     void* c,
                     std::span<std::byte> workspace) {
  const auto run = [&]<class A, class B>(const A* codes_a, const B* codes_b) {
    run_float8_blocks(Blocks<A, B>{.context = context,
                                   .gemm = gemm,
                                   .a = codes_a,
                                   .b = codes_b,
                                   .c = c,
                                   .workspace = workspace},
                      a,
                      b);
  };
  const auto run_b = [&]<class A>(const A* codes_a) {
    if (b.dtype == DType::kF8E4M3) {
      run(codes_a, static_cast<const Float8E4M3*>(b.codes));
    } else {
      run(codes_a, static_cast<const Float8E5M2*>(b.codes));
    }
  };
  TESSERA_CHECK(is_float8(a.dtype) && is_float8(b.dtype) && a.dtype == gemm.input,
                "codes of {} and {} in a product of {}",
                name(a.dtype),
                name(b.dtype),
                name(gemm.input));
  if (a.dtype == DType::kF8E4M3) {
    run_b(static_cast<const Float8E4M3*>(a.codes));
  } else {
    run_b(static_cast<const Float8E5M2*>(a.codes));
  }
}

}  // namespace tessera::cpu
