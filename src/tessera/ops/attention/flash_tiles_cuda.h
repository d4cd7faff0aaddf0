#pragma once

// Attention by tensor cores. A block of four warps takes 64 rows (queries, or in the last kernel
// keys), 16 a warp, and walks over what they pair with in tiles of 64, which lie in shared memory.
// Scores are made, weighed and used again in registers. Every sum has one order: bitwise
// reproducible. This is what its kernels share of tiles; flash_ranges_cuda.h says which they look
// at.
//
// Source: Dao 2023, arXiv:2307.08691, without its atomic sums of dq, which has a kernel of its own.

#include <cstdint>

#include "tessera/backend/cuda/kernels/tensor_cores.h"
#include "tessera/ops/attention/attention_tasks_cuda.h"

namespace tessera::cuda::flash {

inline constexpr int kWarps = 4;
inline constexpr int kFlashThreads = kWarps * kLanes;
inline constexpr int kWarpRows = 16;
static_assert(kTile == kWarps * kWarpRows);
inline constexpr int kChunks = kTile / 16;
inline constexpr float kLog2E = 1.4426950408889634F;

// Rows of a tile lie so far apart that eight of them are in different banks.
template <int D>
inline constexpr int kPitch = D + kPack;

template <int D>
using Rows = SharedMatrix<kPitch<D>>;

// Blocks that a multiprocessor runs at once, which is what registers suffice for.
template <int D>
inline constexpr int kBlocks = D <= 64 ? 3 : 2;

// Elements of a tile in shared memory.
template <int D>
inline constexpr int kTileElements = kTile * kPitch<D>;

// The ids of a tile's rows; rows behind the sequence's end have none.
struct Ids {
  std::int32_t position[kTile];
  std::int32_t document[kTile];
  std::int64_t count;
};

// Fills the ids of rows [first, first + kTile) of a sequence of `length`. All threads call it.
__device__ inline void load_ids(const std::int32_t* positions,
                                const std::int32_t* documents,
                                std::int64_t first,
                                std::int64_t length,
                                Ids& ids) {
  const std::int64_t row = first + threadIdx.x;
  if (threadIdx.x < kTile && row < length) {
    ids.position[threadIdx.x] = positions[row];
    ids.document[threadIdx.x] = documents[row];
  }
  if (threadIdx.x == 0) {
    ids.count = length - first < kTile ? length - first : kTile;
  }
}

__device__ inline bool sees(
    const Ids& queries, const Ids& keys, int query, int key, const Mask& mask) {
  return query < queries.count && key < keys.count &&
         queries.document[query] == keys.document[key] &&
         mask.sees(queries.position[query], keys.position[key]);
}

// Calls body(seen), where seen(query, key) says of pairs of two tiles whether they are seen.
template <class Body>
__device__ void with_mask(
    bool all_seen, const Ids& queries, const Ids& keys, const Mask& mask, const Body& body) {
  if (all_seen) {
    body([](int, int) { return true; });
  } else {
    body([&](int query, int key) { return sees(queries, keys, query, key, mask); });
  }
}

// Rows of one head from `first` on.
template <class T>
struct HeadRows {
  Heads<T> heads;
  std::int64_t batch;
  std::int64_t head;
  std::int64_t first;
  std::int64_t length;  // of the sequence
  std::int64_t channels;

  __device__ T* at(std::int64_t row) const { return heads.at(batch, first + row, head); }

  __device__ bool has(std::int64_t row) const { return first + row < length; }
};

// Copies kTile rows to shared memory, with zeros behind the end of the sequence and of the
// channels. All threads call it.
template <int D>
__device__ void load_tile(const HeadRows<const BFloat16>& from, std::uint16_t* to) {
  using Words = Pack<std::uint32_t, 4>;
  constexpr std::int64_t kPacks = D / kPack;
  for (std::int64_t i = threadIdx.x; i < kTile * kPacks; i += kFlashThreads) {
    const std::int64_t row = i / kPacks;
    const std::int64_t channel = i % kPacks * kPack;
    Words words = {};
    if (from.has(row) && channel < from.channels) {
      words = *reinterpret_cast<const Words*>(from.at(row) + channel);
    }
    *reinterpret_cast<Words*>(to + row * kPitch<D> + channel) = words;
  }
}

// Calls body(place, n, i) for what a lane has of the warp's 16 rows of C fragments: elements i and
// i + 1 of fragment n lie at `place`.
template <int D, class T, class Body>
__device__ void for_each_pair(const HeadRows<T>& rows, const Body& body) {
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = fragment_row() + (half == 0 ? 0 : 8);
    if (!rows.has(row)) {
      continue;
    }
    T* const begin = rows.at(row);
    for (std::int64_t n = 0; n < D / 8; ++n) {
      const std::int64_t channel = 8 * n + fragment_column();
      if (channel < rows.channels) {
        body(begin + channel, n, 2 * half);
      }
    }
  }
}

// Writes the warp's 16 rows of C fragments, times a factor for each of a lane's two rows.
template <int D, class T>
__device__ void store_rows(const FragmentC* sums, const float* factors, const HeadRows<T>& to) {
  for_each_pair<D>(to, [&](T* place, std::int64_t n, int i) {
    const float factor = factors[i / 2];
    store(place, Floats<2>{{sums[n].at[i] * factor, sums[n].at[i + 1] * factor}});
  });
}

// Adds to C fragments what lies where store_rows() would write them.
template <int D>
__device__ void add_stored_rows(const HeadRows<const float>& from, FragmentC* sums) {
  for_each_pair<D>(from, [&](const float* place, std::int64_t n, int i) {
    const Floats<2> stored = load<2>(place);
    sums[n].at[i] += stored.at[0];
    sums[n].at[i + 1] += stored.at[1];
  });
}

// Multiplies the warp's 16 rows by a factor for each of a lane's two rows.
template <int D>
__device__ void scale_rows(FragmentC* sums, const float* factors) {
  for (int n = 0; n < D / 8; ++n) {
    for (int i = 0; i < 4; ++i) {
      sums[n].at[i] *= factors[i / 2];
    }
  }
}

__device__ inline int warp_number() {
  return static_cast<int>(threadIdx.x) / kLanes;
}

// The warp's 16 rows of a tile, as A for every 16 channels.
template <int D>
__device__ void load_fragments(const Rows<D>& tile, FragmentA* fragments) {
  for (int c = 0; c < D / 16; ++c) {
    fragments[c] = tile.a(kWarpRows * warp_number(), 16 * c);
  }
}

// The products of the warp's rows with 16 rows of a tile, over all channels: two C, side by side.
template <int D>
__device__ void dot_rows(const FragmentA* rows, const Rows<D>& tile, int first, FragmentC* sums) {
  sums[0] = {};
  sums[1] = {};
  for (int c = 0; c < D / 16; ++c) {
    const TwoFragmentsB b = tile.b_transposed(first, 16 * c);
    multiply_add(sums[0], rows[c], b.at[0]);
    multiply_add(sums[1], rows[c], b.at[1]);
  }
}

// Adds 16 rows of a tile, weighed by two C side by side, to sums of all channels.
template <int D>
__device__ void add_rows(const FragmentC* weights,
                         const Rows<D>& tile,
                         int first,
                         FragmentC* sums) {
  const FragmentA a = {{bfloat16_pair(weights[0].at[0], weights[0].at[1]),
                        bfloat16_pair(weights[0].at[2], weights[0].at[3]),
                        bfloat16_pair(weights[1].at[0], weights[1].at[1]),
                        bfloat16_pair(weights[1].at[2], weights[1].at[3])}};
  for (std::int64_t c = 0; c < D / 16; ++c) {
    const TwoFragmentsB b = tile.b(first, static_cast<int>(16 * c));
    multiply_add(sums[2 * c], a, b.at[0]);
    multiply_add(sums[2 * c + 1], a, b.at[1]);
  }
}

// Which rows a block has. Late queries see most keys: they come first.
struct Place {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t first;

  __device__ static Place of(std::int64_t number,
                             std::int64_t batches,
                             std::int64_t heads,
                             std::int64_t length) {
    return {.batch = number / heads % batches,
            .head = number % heads,
            .first = (tiles_of(1, 1, length) - 1 - number / heads / batches) * kTile};
  }
};

// The rows of a head from a place on, of queries or what is like them.
template <class T, class Task>
__device__ HeadRows<T> query_rows(const Heads<T>& heads, const Task& task, const Place& place) {
  return {heads, place.batch, place.head, place.first, task.shape.queries, task.shape.channels};
}

// The same of keys.
template <class T, class Task>
__device__ HeadRows<T> key_rows(const Heads<T>& heads, const Task& task, const Place& place) {
  return {heads, place.batch, place.head, place.first, task.shape.keys, task.shape.channels};
}

// The ids of a tile of keys.
template <class Task>
__device__ void load_key_ids(const Task& task, const Place& place, Ids& ids) {
  const std::int64_t length = task.shape.keys;
  load_ids(task.mask.key_positions + place.batch * length,
           task.mask.key_documents + place.batch * length,
           place.first,
           length,
           ids);
}

// The same of queries.
template <class Task>
__device__ void load_query_ids(const Task& task, const Place& place, Ids& ids) {
  const std::int64_t length = task.shape.queries;
  load_ids(task.mask.query_positions + place.batch * length,
           task.mask.query_documents + place.batch * length,
           place.first,
           length,
           ids);
}

// The number in its block of the row, and in its tile of the column, that element i of C has.
__device__ inline int row_of(int i) {
  return kWarpRows * warp_number() + fragment_row() + 8 * (i / 2);
}

__device__ inline int column_of(int n, int i) {
  return 8 * n + fragment_column() + i % 2;
}

// The warp's rows of what a block has.
__device__ inline Place warp_place(Place place) {
  place.first += row_of(0) - fragment_row();
  return place;
}

// Calls body.operator()<D, kCapped>() with the least width that has all channels, and whether
// scores have a cap: where they have none, no register is kept for it. Models that cap scores have
// heads of 128 and more: one width serves all that do. Steps over parts of the keys have two.
template <class Task, class Body>
void with_form(const Task& task, const Body& body) {
  const std::int64_t channels = task.shape.channels;
  if (task.form.cap > 0.0F) {
    body.template operator()<128, true>();
    return;
  }
  if constexpr (!Task::kIsWide) {
    if (channels <= 32) {
      return body.template operator()<32, false>();
    }
    if (channels > 64 && channels <= 96) {
      return body.template operator()<96, false>();
    }
  }
  if (channels <= 64) {
    body.template operator()<64, false>();
  } else {
    body.template operator()<128, false>();
  }
}

}  // namespace tessera::cuda::flash
