#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/ops/adamw/adamw.h"
#include "tessera/ops/adamw/adamw_operands.h"
#include "tessera/ops/adamw/adamw_step.h"

// Always in place: an element is written where it was read.

namespace tessera {
namespace cuda {
namespace {

constexpr int kWidth = 4;   // elements of a pack: one access of 16 bytes in f32
constexpr int kPieces = 4;  // packs of a thread at a time

// Blocks of a multiprocessor, whose registers hold what their threads have read.
template <int N>
constexpr int kBlocksAtOnce = N == 1 ? 4 : 2;

// What changes from step to step, in the device's memory.
struct Scalars {
  const float* lr;
  const float* t;
  const float* scale;
  const float* apply;
};

template <class Gradient, class Moment>
struct Update {
  AdamwAttrs attrs;
  Scalars scalars;
  Matrix<const Gradient> gradient;
  Matrix<Moment> m;
  Matrix<Moment> v;
  Matrix<float> weight;      // the master, or the parameter itself
  Matrix<BFloat16> rounded;  // of a master
};

// N elements as they lie in memory. Two of 16 bits stay in one word: to part them would be to wait
// for them.
template <class T, int N>
struct Read {
  static constexpr bool kPairs = sizeof(T) == 2 && N % 2 == 0;

  std::conditional_t<kPairs, Pack<std::uint32_t, (N + 1) / 2>, Pack<T, N>> pack;

  static __device__ Read from(const T* place) { return *reinterpret_cast<const Read*>(place); }

  __device__ Floats<N> floats() const {
    Floats<N> values;
    for (int i = 0; i < N; ++i) {
      if constexpr (kPairs) {
        const std::uint32_t pair = pack.at[i / 2];
        values.at[i] = std::bit_cast<float>(i % 2 == 0 ? pair << 16U : pair & 0xFFFF0000U);
      } else {
        values.at[i] = widen(pack.at[i]);
      }
    }
    return values;
  }
};

// What a thread reads of N elements.
template <int N, class Gradient, class Moment>
struct Piece {
  Read<Gradient, N> gradient;
  Read<Moment, N> m;
  Read<Moment, N> v;
  Read<float, N> weight;
};

// The elements of a piece at (row, column), updated.
template <bool kMaster, int N, class Gradient, class Moment>
__device__ void write(const Update<Gradient, Moment>& task,
                      const AdamwStep& step,
                      const Piece<N, Gradient, Moment>& piece,
                      std::int64_t row,
                      std::int64_t column) {
  const Floats<N> gradient = piece.gradient.floats();
  Floats<N> m = piece.m.floats();
  Floats<N> v = piece.v.floats();
  Floats<N> weight = piece.weight.floats();
  for (int k = 0; k < N; ++k) {
    const float g = gradient.at[k] * step.gradient_scale;
    m.at[k] = fmaf(g, step.one_minus_beta1, m.at[k] * step.beta1);
    v.at[k] = fmaf(g * g, step.one_minus_beta2, v.at[k] * step.beta2);
    const float root = sqrtf(v.at[k]) * step.root_correction;
    const float ratio = m.at[k] / (root + step.eps);
    weight.at[k] = fmaf(-ratio, step.step, weight.at[k] * step.decay);
  }
  store(task.m.at(row, column), m);
  store(task.v.at(row, column), v);
  store(task.weight.at(row, column), weight);
  if constexpr (kMaster) {
    store(task.rounded.at(row, column), weight);
  }
}

// A block takes kPieces * kThreads packs at a time, neighbours by neighbouring lanes; the loads of
// all pieces are on their way before the first is used. Packs of several elements are all of one
// row, so that their places are found at little cost.
template <int N, bool kMaster, class Gradient, class Moment>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<N>)
    update(Update<Gradient, Moment> task, PackGrid grid) {
  if (*task.scalars.apply == 0.0F) {
    return;
  }
  __shared__ AdamwStep shared;
  if (threadIdx.x == 0) {
    shared = adamw_step(task.attrs, *task.scalars.lr, *task.scalars.t, *task.scalars.scale);
  }
  __syncthreads();
  const AdamwStep step = shared;
  for (std::uint32_t first = blockIdx.x * kPieces * kThreads + threadIdx.x; first < grid.count;
       first += gridDim.x * kPieces * kThreads) {
    Piece<N, Gradient, Moment> pieces[kPieces];
    const auto each_piece = [&](const auto& body) {
#pragma unroll
      for (int k = 0; k < kPieces; ++k) {
        const std::uint32_t i = first + static_cast<std::uint32_t>(k * kThreads);
        if (i < grid.count) {
          const std::uint32_t row = N == 1 ? grid.packs_of_row.quotient(i) : 0;
          const std::uint32_t pack = i - row * grid.packs_of_row.divisor();
          body(pieces[k], N == 1 ? grid.first_row + row : 0, (grid.first_pack + pack) * N);
        }
      }
    };
    each_piece([&](auto& piece, std::int64_t row, std::int64_t column) {
      piece = {.gradient = Read<Gradient, N>::from(task.gradient.at(row, column)),
               .m = Read<Moment, N>::from(task.m.at(row, column)),
               .v = Read<Moment, N>::from(task.v.at(row, column)),
               .weight = Read<float, N>::from(task.weight.at(row, column))};
    });
    each_piece([&](const auto& piece, std::int64_t row, std::int64_t column) {
      write<kMaster>(task, step, piece, row, column);
    });
  }
}

template <int N, class Gradient, class Moment>
void launch_update(const Context& context,
                   const Update<Gradient, Moment>& task,
                   const View::Rows& rows) {
  for_each_grid(rows.count, rows.width / N, [&](const PackGrid& grid) {
    // Few times what runs at once: each begins with the scalars of the step.
    const std::int64_t most = std::int64_t{4} * kBlocksAtOnce<N> * context.multiprocessors();
    const std::int64_t wanted = (grid.count + kPieces * kThreads - 1) / (kPieces * kThreads);
    launch(
        context,
        "adamw",
        std::min(wanted, most),
        task.attrs.master ? update<N, true, Gradient, Moment> : update<N, false, Gradient, Moment>,
        task,
        grid);
  });
}

}  // namespace
}  // namespace cuda

void run(const AdamwAttrs& attrs, cuda::Context& context, const Views& views) {
  const AdamwOperands of = by_name_in_place(attrs, views);
  const View& weight = attrs.master ? of.master : of.parameter;
  const std::array<View, 5> states = {of.parameter, of.gradient, of.m, of.v, weight};
  const std::int32_t inner = cpu::common_inner_dims(states);
  const View::Rows rows = of.parameter.rows(inner);
  const auto run_as = [&](auto element, auto moment) {
    const cuda::Update<decltype(element), decltype(moment)> task = {
        .attrs = attrs,
        .scalars = {.lr = of.lr.as<const float>(),
                    .t = of.t.as<const float>(),
                    .scale = of.scale.as<const float>(),
                    .apply = of.apply.as<const float>()},
        .gradient = {of.gradient, inner},
        .m = {of.m, inner},
        .v = {of.v, inner},
        .weight = {weight, inner},
        .rounded = {of.parameter, inner}};
    if (rows.count == 1 && cuda::fits_packs(states, inner)) {
      cuda::launch_update<cuda::kWidth>(context, task, rows);
    } else {
      cuda::launch_update<1>(context, task, rows);
    }
  };
  cuda::with_type(of.gradient.dtype, [&](auto element) {
    cuda::with_type(of.m.dtype, [&](auto moment) { run_as(element, moment); });
  });
}

}  // namespace tessera
