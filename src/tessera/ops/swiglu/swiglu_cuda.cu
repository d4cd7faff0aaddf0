#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/kernels/largest.h"
#include "tessera/backend/cuda/kernels/row_teams.h"
#include "tessera/ops/float8/codes_cuda.h"
#include "tessera/ops/swiglu/swiglu.h"
#include "tessera/ops/swiglu/swiglu_operands.h"

// Results are written where all operands of the same index were read: each may lie over any
// operand.

namespace tessera {
namespace cuda {
namespace {

template <class T>
struct Forward {
  Matrix<const T> gate;
  Matrix<const T> up;
  Matrix<T> results[1];

  template <int N>
  __device__ void make(std::int64_t row, std::int64_t column, Floats<N> (&made)[1]) const {
    const Floats<N> g = load<N>(gate.at(row, column));
    made[0] = load<N>(up.at(row, column));
    for (int i = 0; i < N; ++i) {
      made[0].at[i] *= g.at[i] * sigmoid<T>(g.at[i]);
    }
  }
};

template <class T>
struct Backward {
  Matrix<const T> dy;
  Matrix<const T> gate;
  Matrix<const T> up;
  Matrix<T> results[2];  // dgate, dup

  template <int N>
  __device__ void make(std::int64_t row, std::int64_t column, Floats<N> (&made)[2]) const {
    const Floats<N> arriving = load<N>(dy.at(row, column));
    const Floats<N> g = load<N>(gate.at(row, column));
    const Floats<N> u = load<N>(up.at(row, column));
    for (int i = 0; i < N; ++i) {
      const float s = sigmoid<T>(g.at[i]);
      made[0].at[i] = arriving.at[i] * u.at[i] * (s * (1.0F + g.at[i] * (1.0F - s)));
      made[1].at[i] = arriving.at[i] * (g.at[i] * s);
    }
  }
};

// Writes kCount results, seen by as many `largest` unless that is null.
template <int kCount, class Body>
struct Writer {
  Body body;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column, Largest* largest = nullptr) const {
    Floats<N> made[kCount];
    body.make(row, column, made);
    for (int i = 0; i < kCount; ++i) {
      store(body.results[i].at(row, column), made[i], largest == nullptr ? nullptr : largest + i);
    }
  }
};

template <int kCount>
struct CodesOfAll {
  RowCodes at[kCount];
};

// Writes the results and the codes of their rows: a block takes a row, and reads it again, from its
// caches, when it knows the largest magnitudes.
template <int kCount, class Body>
__global__ void make_with_codes(Writer<kCount, Body> writer,
                                CodesOfAll<kCount> codes,
                                std::int64_t rows,
                                std::int64_t width) {
  using Block = Team<kThreads, 0>;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    Largest largest[kCount];
    each_column<Block>(width,
                       [&](int, std::int64_t c) { writer.template run<kPack>(row, c, largest); });
    for (int i = 0; i < kCount; ++i) {
      codes.at[i].template write<Block, true>(row, width, largest[i], [&](int, std::int64_t c) {
        return load<kPack>(writer.body.results[i].at(row, c));
      });
    }
  }
}

// Rows of how many dims a body takes: of one where each has codes, else of as many as lie together.
std::int32_t inner_dims(const Float8Results& float8, std::span<const View> all) {
  return float8.codes ? 1 : cpu::common_inner_dims(all);
}

// `all` is what the body reads and writes, as rows of inner_dims(); `results` are the op's.
template <class T, int kCount, class Body>
void run_body(Context& context,
              const Body& body,
              std::span<const View> all,
              const Float8Results& float8,
              std::span<const View> results) {
  const char* const name = kCount == 1 ? "swiglu" : "swiglu_backward";
  const std::int32_t inner = inner_dims(float8, all);
  const Writer<kCount, Body> writer = {.body = body};
  if (float8.amax) {
    Places<kCount> places = {};
    for (int i = 0; i < kCount; ++i) {
      places.at[i] = results[static_cast<std::size_t>(kCount + i)].as<float>();
    }
    for_each_pack_seen(context, name, all, inner, writer, places);
    return;
  }
  const CodesOfResults codes(float8, results, kCount, fits_packs(all, inner));
  if constexpr (sizeof(T) == 2) {
    if (codes.in_kernel()) {
      CodesOfAll<kCount> places;
      for (int i = 0; i < kCount; ++i) {
        places.at[i] = codes.of_kernel(static_cast<std::size_t>(i));
      }
      const View::Rows rows = all[0].rows(inner);
      launch(context,
             name,
             blocks_of_rows(context, rows.count),
             make_with_codes<kCount, Body>,
             writer,
             places,
             rows.count,
             rows.width);
      return;
    }
  }
  for_each_pack(context, name, all, inner, writer);
  codes.make_rest(context);
}

}  // namespace
}  // namespace cuda

void run(const SwigluAttrs& attrs, cuda::Context& context, const Views& views) {
  const SwigluOperands of = by_name(attrs, views);
  const std::array<View, 3> all = {of.gate, of.up, of.y};
  const std::int32_t inner = cuda::inner_dims(attrs.float8, all);
  cuda::with_type(of.y.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Forward<T> body = {
        .gate = {of.gate, inner}, .up = {of.up, inner}, .results = {{of.y, inner}}};
    cuda::run_body<T, 1>(context, body, all, attrs.float8, views.out);
  });
}

void run(const SwigluBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  const SwigluBackwardOperands of = by_name(attrs, views);
  const std::array<View, 5> all = {of.dy, of.gate, of.up, of.dgate, of.dup};
  const std::int32_t inner = cuda::inner_dims(attrs.float8, all);
  cuda::with_type(of.dy.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Backward<T> body = {.dy = {of.dy, inner},
                                    .gate = {of.gate, inner},
                                    .up = {of.up, inner},
                                    .results = {{of.dgate, inner}, {of.dup, inner}}};
    cuda::run_body<T, 2>(context, body, all, attrs.float8, views.out);
  });
}

}  // namespace tessera
