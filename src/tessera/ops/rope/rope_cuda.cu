#include <algorithm>
#include <cstdint>
#include <utility>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/kernels/largest.h"
#include "tessera/ops/rope/rope.h"
#include "tessera/ops/rope/rope_operands.h"

// y may lie over x: a pair is written where it was read, and what is not rotated stays.

namespace tessera {
namespace cuda {
namespace {

constexpr std::size_t kMaxFrequencies = 512;

// By value, as an argument of the kernel.
struct Frequencies {
  float of[kMaxFrequencies];
  std::int64_t count;
  double magnitude;
};

__global__ void rope_table(Frequencies frequencies,
                           const std::int32_t* positions,
                           std::int64_t rows,
                           Matrix<float> table) {
  for (std::int64_t i = first_item(); i < rows * frequencies.count; i += num_threads()) {
    const std::int64_t row = i / frequencies.count;
    const std::int64_t pair = i % frequencies.count;
    // The angle is rounded to f32, its cosine and sine are of f64.
    const double angle = static_cast<float>(positions[row]) * frequencies.of[pair];
    *table.at(row, 2 * pair) = static_cast<float>(cos(angle) * frequencies.magnitude);
    *table.at(row, 2 * pair + 1) = static_cast<float>(sin(angle) * frequencies.magnitude);
  }
}

template <class T>
struct Rotation {
  Matrix<const T> x;
  Matrix<const float> table;
  Matrix<T> y;
  Divisor head_dim;
  std::int64_t rotated;  // elements of a head
  float sign;            // 1 to rotate, -1 to rotate back

  // A pair, unlike a pack, may lie anywhere.
  template <int N, class Element>
  static __device__ Floats<N> read(const Element* place) {
    if constexpr (N == kPack) {
      return load<N>(place);
    } else {
      return {widen(place[0]), widen(place[1])};
    }
  }

  template <int N>
  static __device__ void write(T* place, const Floats<N>& values, Largest* largest) {
    if constexpr (N == kPack) {
      store(place, values, largest);
    } else {
      const Pack<T, N> pair = narrow<T>(values);
      place[0] = pair.at[0];
      place[1] = pair.at[1];
      if (largest != nullptr) {
        largest->take(pair);
      }
    }
  }

  // A pack is of one head, all rotated or none.
  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column, Largest* largest = nullptr) const {
    const auto place = static_cast<std::uint32_t>(column);
    const std::uint32_t within = place - head_dim.quotient(place) * head_dim.divisor();
    Floats<N> values = read<N>(x.at(row, column));
    // On its way along with x, whether it is needed or not.
    const Floats<N> turn = read<N>(
        table.at(row, std::min(std::int64_t{within}, std::max<std::int64_t>(rotated - N, 0))));
    if (within >= rotated) {
      write(y.at(row, column), values, largest);
      return;
    }
    for (int i = 0; i < N; i += 2) {
      const float even = values.at[i];
      const float odd = values.at[i + 1];
      const float cosine = turn.at[i];
      const float sine = sign * turn.at[i + 1];
      values.at[i] = even * cosine - odd * sine;
      values.at[i + 1] = odd * cosine + even * sine;
    }
    write(y.at(row, column), values, largest);
  }
};

}  // namespace
}  // namespace cuda

void run(const RopeTableAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::int64_t count = attrs.head_dim / 2;
  TESSERA_REQUIRE(std::cmp_less_equal(count, cuda::kMaxFrequencies),
                  ErrorCode::kUnsupported,
                  "rope_table: heads {} wide on a CUDA device, expected at most {}",
                  attrs.head_dim,
                  2 * cuda::kMaxFrequencies);
  cuda::Frequencies by_value = {.of = {}, .count = count, .magnitude = attrs.magnitude};
  for (std::int64_t i = 0; i < count; ++i) {
    by_value.of[i] = rope_frequency(attrs, i);
  }
  const RopeTableOperands of = by_name(attrs, views);
  const std::span<const std::int32_t> positions = cpu::flat<const std::int32_t>(of.positions);
  const auto rows = static_cast<std::int64_t>(positions.size());
  cuda::launch(context,
               "rope_table",
               cuda::blocks_for(context, rows * by_value.count),
               cuda::rope_table,
               by_value,
               positions.data(),
               rows,
               cuda::Matrix<float>(of.table, 1));
}

void run(const RopeAttrs& attrs, cuda::Context& context, const Views& views) {
  const RopeOperands of = by_name(attrs, views);
  const std::array<View, 2> packed = {of.x, of.y};
  const std::int64_t head_dim = of.x.sizes[3];
  const std::int64_t rotated = of.table.rows(1).width;
  const bool fits = cuda::fits_packs(packed, 2) && cuda::fits_packs({&of.table, 1}, 1) &&
                    head_dim % cuda::kPack == 0;
  cuda::with_type(of.x.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Rotation<T> body = {.x = {of.x, 2},
                                    .table = {of.table, 1},
                                    .y = {of.y, 2},
                                    .head_dim = cuda::Divisor(head_dim),
                                    .rotated = rotated,
                                    .sign = attrs.inverse ? -1.0F : 1.0F};
    const View::Rows rows = of.x.rows(2);
    if (attrs.amax) {
      const cuda::Places<1> places = {{of.amax.as<float>()}};
      cuda::for_each_pack_seen<2>(context, "rope", rows, fits, body, places);
    } else {
      cuda::for_each_pack<2>(context, "rope", rows, fits, body);
    }
  });
}

}  // namespace tessera
