#pragma once

// For the ops' _cuda.cu files: the largest magnitude of what a kernel writes, found along with it.
// A maximum has no order, so that blocks may take theirs in any.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/kernels/launch.h"
#include "tessera/ops/float8/scales.h"

namespace tessera::cuda {

// Where the largest magnitudes of a kernel's results go.
template <int kCount>
struct Places {
  float* at[kCount];
};

#if defined(__CUDACC__) || defined(TESSERA_EMULATED_CUDA)

// The largest magnitude that a thread has met.
class Largest {
 public:
  template <class T, int N>
  __device__ void take(const Pack<T, N>& pack) {
    for (int i = 0; i < N; ++i) {
      bits_ = std::max(bits_, magnitude_bits(widen(pack.at[i])));
    }
  }

  // That of the block. Every thread of the block calls it.
  __device__ float of_block() const {
    return std::bit_cast<float>(
        block_fold(bits_, [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); }));
  }

  // That of the thread's team, see row_teams.h.
  template <class Team>
  __device__ float of_team() const {
    if constexpr (Team::kSize == kWarp) {
      return std::bit_cast<float>(
          warp_fold(bits_, [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); }));
    } else {
      return of_block();
    }
  }

  // Raises a magnitude that all blocks find together. Every thread of the block calls it.
  __device__ void raise(float* known) const {
    const float found = of_block();
    if (threadIdx.x == 0) {
      raise_to(known, found);
    }
  }

  static __device__ void raise_to(float* known, float magnitude) {
    atomicMax(reinterpret_cast<std::uint32_t*>(known), std::bit_cast<std::uint32_t>(magnitude));
  }

 private:
  std::uint32_t bits_ = 0;
};

// The same as store(), seen by `largest` unless that is null.
template <int N, class T>
__device__ void store(T* place, const Floats<N>& values, Largest* largest) {
  const Pack<T, N> pack = narrow<T>(values);
  *reinterpret_cast<Pack<T, N>*>(place) = pack;
  if (largest != nullptr) {
    largest->take(pack);
  }
}

template <int kCount>
__global__ void clear_places(Places<kCount> places) {
  if (threadIdx.x < kCount) {
    *places.at[threadIdx.x] = 0.0F;
  }
}

// Zero in each place, before the kernel that raises them.
template <int kCount>
void clear(const Context& context, const char* name, const Places<kCount>& places) {
  launch(context, name, 1, clear_places<kCount>, places);
}

// body.template run<N>(row, column, largest), one Largest for each place.
template <int N, int kCount, class Body>
__global__ void each_pack_seen(Body body, PackGrid grid, Places<kCount> places) {
  Largest largest[kCount];
  each_pack_of<N>(grid, [&](std::int64_t row, std::int64_t column) {
    body.template run<N>(row, column, largest);
  });
  for (int i = 0; i < kCount; ++i) {
    largest[i].raise(places.at[i]);
  }
}

// As for_each_pack(), and the largest magnitudes of what the body stores.
template <int kLeast = 1, int kCount, class Body>
void for_each_pack_seen(const Context& context,
                        const char* name,
                        const View::Rows& rows,
                        bool fits,
                        const Body& body,
                        const Places<kCount>& places) {
  clear(context, name, places);
  for_each_grid(rows.count, rows.width / (fits ? kPack : kLeast), [&](const PackGrid& grid) {
    launch(context,
           name,
           blocks_for(context, grid.count),
           fits ? each_pack_seen<kPack, kCount, Body> : each_pack_seen<kLeast, kCount, Body>,
           body,
           grid,
           places);
  });
}

template <int kCount, class Body>
void for_each_pack_seen(const Context& context,
                        const char* name,
                        std::span<const View> views,
                        std::int32_t inner,
                        const Body& body,
                        const Places<kCount>& places) {
  for_each_pack_seen(context, name, views[0].rows(inner), fits_packs(views, inner), body, places);
}

#endif

}  // namespace tessera::cuda
