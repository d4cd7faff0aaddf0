// Attention by tensor cores. A block of four warps takes 64 rows (queries, or in the last kernel
// keys), 16 a warp, and walks over what they pair with in tiles of 64, which lie in shared memory.
// Scores are made, weighed and used again in registers. What the ids of each tile lie between is
// found first: a tile none of whose pairs is seen is passed over, and where all pairs are seen none
// is asked about. Every sum has one order: bitwise reproducible.
//
// Source: Dao 2023, arXiv:2307.08691, without its atomic sums of dq, which has a kernel of its own.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/attention.h"
#include "tessera/backend/cuda/tensor_cores.h"

namespace tessera::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kFlashThreads = kWarps * kLanes;
constexpr int kWarpRows = 16;
constexpr int kTile = kWarps * kWarpRows;  // rows of a block, and of what it walks over
constexpr int kChunks = kTile / 16;
constexpr std::int64_t kMaxFlashChannels = 128;
constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

// Rows of a tile lie so far apart that eight of them are in different banks.
template <int D>
constexpr int kPitch = D + kPack;

template <int D>
using Rows = SharedMatrix<kPitch<D>>;

// Blocks that a multiprocessor runs at once, which is what registers suffice for.
template <int D>
constexpr int kBlocks = D <= 64 ? 3 : 2;

// Elements of a tile in shared memory.
template <int D>
constexpr int kTileElements = kTile * kPitch<D>;

// The ids of a tile's rows; rows behind the sequence's end have none.
struct Ids {
  std::int32_t position[kTile];
  std::int32_t document[kTile];
  std::int64_t count;
};

// What a tile's positions and documents lie between.
struct alignas(16) Range {
  std::int32_t min_position;
  std::int32_t max_position;
  std::int32_t min_document;
  std::int32_t max_document;
};

// Those of all tiles, (b, tiles).
struct Ranges {
  Range* queries;
  Range* keys;
};

__device__ std::int32_t warp_min(std::int32_t value) {
  return warp_fold(value, [](std::int32_t a, std::int32_t b) { return b < a ? b : a; });
}

__device__ std::int32_t warp_max(std::int32_t value) {
  return warp_fold(value, [](std::int32_t a, std::int32_t b) { return b > a ? b : a; });
}

// Of the four lanes that have the same rows of C.
__device__ float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, 2));
}

__device__ float row_sum(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFU, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFU, value, 2);
}

// Fills the ids of rows [first, first + kTile) of a sequence of `length`. All threads call it.
__device__ void load_ids(const std::int32_t* positions,
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

// The ids of the queries or the keys of a batch.
struct IdRows {
  const std::int32_t* positions;
  const std::int32_t* documents;
  std::int64_t length;  // of a sequence
};

constexpr std::int64_t tiles_of(std::int64_t batches, std::int64_t heads, std::int64_t length) {
  return batches * heads * ((length + kTile - 1) / kTile);
}

// By a warp.
__device__ void find_range(const IdRows& ids, std::int64_t number, Range* ranges) {
  const std::int64_t tiles = tiles_of(1, 1, ids.length);
  const std::int64_t row = number / tiles * ids.length;
  const std::int64_t first = number % tiles * kTile;
  Range range = {INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
  for (std::int64_t i = first + lane(); i < first + kTile && i < ids.length; i += kLanes) {
    range.min_position = std::min(range.min_position, ids.positions[row + i]);
    range.max_position = std::max(range.max_position, ids.positions[row + i]);
    range.min_document = std::min(range.min_document, ids.documents[row + i]);
    range.max_document = std::max(range.max_document, ids.documents[row + i]);
  }
  range = {warp_min(range.min_position),
           warp_max(range.max_position),
           warp_min(range.min_document),
           warp_max(range.max_document)};
  if (lane() == 0) {
    ranges[number] = range;
  }
}

// Of all tiles, a warp each. Not where another kernel has done what they are for.
__global__ static void find_ranges(
    IdRows queries, IdRows keys, std::int64_t batches, const std::int32_t* is_done, Ranges ranges) {
  const std::int64_t of_queries = tiles_of(batches, 1, queries.length);
  const std::int64_t all = of_queries + tiles_of(batches, 1, keys.length);
  const std::int64_t count = is_done == nullptr || *is_done == 0 ? all : 0;
  for (std::int64_t i = first_item() / kLanes; i < count; i += num_threads() / kLanes) {
    if (i < of_queries) {
      find_range(queries, i, ranges.queries);
    } else {
      find_range(keys, i - of_queries, ranges.keys);
    }
  }
}

// What two tiles see, of queries and of keys.
struct Sight {
  bool some = false;  // some query may see some key
  bool all = false;   // each sees each, as far as they are there
};

__device__ Sight sight_of(const Range& queries, const Range& keys, bool causal) {
  const bool one_document = queries.min_document == queries.max_document &&
                            keys.min_document == keys.max_document &&
                            queries.min_document == keys.min_document;
  return {.some = queries.min_document <= keys.max_document &&
                  keys.min_document <= queries.max_document &&
                  (!causal || keys.min_position <= queries.max_position),
          .all = one_document && (!causal || keys.max_position <= queries.min_position)};
}

__device__ bool sees(const Ids& queries, const Ids& keys, int query, int key, bool causal) {
  return query < queries.count && key < keys.count &&
         queries.document[query] == keys.document[key] &&
         (!causal || keys.position[key] <= queries.position[query]);
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

// Writes the warp's 16 rows of C fragments, times a factor for each of a lane's two rows.
template <int D>
__device__ void store_rows(const FragmentC* sums,
                           const float* factors,
                           const HeadRows<BFloat16>& to) {
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = fragment_row() + (half == 0 ? 0 : 8);
    if (!to.has(row)) {
      continue;
    }
    BFloat16* const out = to.at(row);
    for (std::int64_t n = 0; n < D / 8; ++n) {
      const std::int64_t channel = 8 * n + fragment_column();
      if (channel < to.channels) {
        const float first = half == 0 ? sums[n].at[0] : sums[n].at[2];
        const float second = half == 0 ? sums[n].at[1] : sums[n].at[3];
        *reinterpret_cast<std::uint32_t*>(out + channel) =
            bfloat16_pair(first * factors[half], second * factors[half]);
      }
    }
  }
}

__device__ int warp_number() {
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

// The tiles that a block's own, of queries or of keys, is paired with. Few and narrow: registers
// are scarce.
struct Walk {
  const Range* own;
  const Range* others;
  int count;
  int full;  // so many have all their rows, and so has the block's own

  __device__ static Walk of(const Range* own_ranges,
                            std::int64_t own_length,
                            const Range* other_ranges,
                            std::int64_t other_length,
                            const Place& place) {
    return {.own = own_ranges + tiles_of(place.batch, 1, own_length) + place.first / kTile,
            .others = other_ranges + tiles_of(place.batch, 1, other_length),
            .count = static_cast<int>(tiles_of(1, 1, other_length)),
            .full = place.first + kTile <= own_length ? static_cast<int>(other_length / kTile) : 0};
  }
};

// Calls body(tile, all_seen) for each tile that has something to see, in order, where
// sight(own, other) says what there is. A lane looks at a tile: to pass over one costs next to
// nothing. All threads of a block call it, and get the same.
template <class SightOf, class Body>
__device__ void visit_tiles(const Walk& walk, const SightOf& sight, const Body& body) {
  for (int first = 0; first < walk.count; first += kLanes) {
    const int tile = first + lane();
    const Sight found = tile < walk.count ? sight(*walk.own, walk.others[tile]) : Sight();
    std::uint32_t some = ballot(found.some);
    const std::uint32_t all = ballot(found.all && tile < walk.full);
    for (; some != 0; some &= some - 1) {
      const int bit = std::countr_zero(some);
      body(first + bit, (all >> bit & 1U) != 0);
    }
  }
}

// A lane's two rows of a softmax that is built up over tiles of keys.
struct Softmax {
  float shift[2];  // the largest score so far, in units of ln 2
  float total[2];  // the lane's part of the sum of 2^(score - shift)
};

// Turns the scores of 64 keys to weights, and takes them into the softmax; what was there before
// counts `kept` of it.
__device__ void take_scores(FragmentC* scores, Softmax& softmax, float* kept) {
  for (int half = 0; half < 2; ++half) {
    float largest = softmax.shift[half];
    for (int n = 0; n < kTile / 8; ++n) {
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        largest = fmaxf(largest, scores[n].at[i]);
      }
    }
    largest = row_max(largest);
    const float shift = largest == -INFINITY ? 0.0F : largest;  // nothing is seen yet
    kept[half] = exp2f(softmax.shift[half] - shift);
    softmax.shift[half] = largest;
    float total = 0.0F;
    for (int n = 0; n < kTile / 8; ++n) {
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[n].at[i] = exp2f(scores[n].at[i] - shift);
        total += scores[n].at[i];
      }
    }
    softmax.total[half] = fmaf(softmax.total[half], kept[half], total);
  }
}

// The keys and values that a block looks at, in shared memory.
struct KeyTile {
  Ids& ids;
  std::uint16_t* k;
  std::uint16_t* v;
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

// What the forward kernel and that of dq share: a walk over the keys of a block's queries. Calls
// body(all_seen) for each tile that some query may see; where all are seen, the tile has no ids.
template <int D, class Task, class Body>
__device__ void walk_keys(const Task& task,
                          const Ranges& ranges,
                          const Place& place,
                          const KeyTile& tile,
                          const Body& body) {
  const Shape& shape = task.shape;
  const Walk walk = Walk::of(ranges.queries, shape.queries, ranges.keys, shape.keys, place);
  const auto sight = [&](const Range& queries, const Range& keys) {
    return sight_of(queries, keys, task.mask.causal);
  };
  visit_tiles(walk, sight, [&](int number, bool all_seen) {
    const Place keys = {.batch = place.batch,
                        .head = place.head / shape.group(),
                        .first = std::int64_t{number} * kTile};
    __syncthreads();  // the tile before is done with
    if (!all_seen) {
      load_key_ids(task, keys, tile.ids);
    }
    load_tile<D>(key_rows(task.k, task, keys), tile.k);
    load_tile<D>(key_rows(task.v, task, keys), tile.v);
    __syncthreads();
    body(all_seen);
  });
}

// The number in its block of the row, and in its tile of the column, that element i of C has.
__device__ int row_of(int i) {
  return kWarpRows * warp_number() + fragment_row() + 8 * (i / 2);
}

__device__ int column_of(int n, int i) {
  return 8 * n + fragment_column() + i % 2;
}

// Scales the products of queries and keys, in units of ln 2, and leaves those for which
// seen(row, column) holds.
template <class Seen>
__device__ void mask_scores(float scale, const Seen& seen, FragmentC* scores) {
  for (int n = 0; n < kTile / 8; ++n) {
    for (int i = 0; i < 4; ++i) {
      const bool is_seen = seen(row_of(i), column_of(n, i));
      scores[n].at[i] = is_seen ? scores[n].at[i] * (scale * kLog2E) : -INFINITY;
    }
  }
}

// Calls body(seen), where seen(query, key) says of pairs of two tiles whether they are seen.
template <class Body>
__device__ void with_mask(
    bool all_seen, const Ids& queries, const Ids& keys, bool causal, const Body& body) {
  if (all_seen) {
    body([](int, int) { return true; });
  } else {
    body([&](int query, int key) { return sees(queries, keys, query, key, causal); });
  }
}

// Writes lse, and gives what the sums of a lane's two rows are multiplied by.
__device__ void end_softmax(const Forward<BFloat16>& task,
                            const Place& place,
                            const Softmax& softmax,
                            float* factors) {
  const Shape& shape = task.shape;
  for (int half = 0; half < 2; ++half) {
    const float total = row_sum(softmax.total[half]);
    factors[half] = total > 0.0F ? 1.0F / total : 0.0F;
    const std::int64_t query = place.first + row_of(half == 0 ? 0 : 2);
    if (fragment_column() == 0 && query < shape.queries) {
      task.lse[(place.batch * shape.heads + place.head) * shape.queries + query] =
          total > 0.0F ? (softmax.shift[half] + log2f(total)) * kLn2 : -INFINITY;
    }
  }
}

template <int D>
__device__ void scale_rows(FragmentC* sums, const float* factors) {
  for (int n = 0; n < D / 8; ++n) {
    for (int i = 0; i < 4; ++i) {
      sums[n].at[i] *= factors[i / 2];
    }
  }
}

// The warp's rows of what a block has.
__device__ Place warp_place(Place place) {
  place.first += row_of(0) - fragment_row();
  return place;
}

template <int D>
__global__ void __launch_bounds__(kFlashThreads, kBlocks<D>)
    flash_attend(Forward<BFloat16> task, Ranges ranges) {
  alignas(16) __shared__ std::uint16_t k[kTileElements<D>];
  alignas(16) __shared__ std::uint16_t v[kTileElements<D>];
  __shared__ Ids query_ids;
  __shared__ Ids key_ids;
  const Shape& shape = task.shape;
  const std::int64_t count = task.is_left() ? tiles_of(shape.batch, shape.heads, shape.queries) : 0;
  for (std::int64_t number = blockIdx.x; number < count; number += gridDim.x) {
    const Place place = Place::of(number, shape.batch, shape.heads, shape.queries);
    __syncthreads();
    load_tile<D>(query_rows(task.q, task, place), k);
    load_query_ids(task, place, query_ids);
    __syncthreads();
    FragmentA q[D / 16];
    load_fragments<D>({k}, q);
    FragmentC o[D / 8] = {};
    Softmax softmax = {{-INFINITY, -INFINITY}, {0.0F, 0.0F}};
    walk_keys<D>(task, ranges, place, {key_ids, k, v}, [&](bool all_seen) {
      FragmentC scores[kTile / 8];
      for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) {
        dot_rows<D>(q, {k}, static_cast<int>(16 * chunk), scores + 2 * chunk);
      }
      with_mask(all_seen, query_ids, key_ids, task.mask.causal, [&](const auto& seen) {
        mask_scores(task.scale, seen, scores);
      });
      float kept[2];
      take_scores(scores, softmax, kept);
      scale_rows<D>(o, kept);
      for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) {
        add_rows<D>(scores + 2 * chunk, {v}, static_cast<int>(16 * chunk), o);
      }
    });
    float factors[2];
    end_softmax(task, place, softmax, factors);
    store_rows<D>(o, factors, query_rows(task.o, task, warp_place(place)));
  }
}

// What the gradients need of each query of a tile.
struct QueryFacts {
  float lse[kTile];    // in units of ln 2
  float delta[kTile];  // dout . o
};

// The softmax weight of a pair, and the gradient of its score.
__device__ void weigh_pair(
    bool seen, float scale, float lse, float delta, float& score, float& slope) {
  const float weight = seen ? exp2f(fmaf(score, scale * kLog2E, -lse)) : 0.0F;
  slope = seen ? weight * (slope - delta) : 0.0F;
  score = weight;
}

// delta = dout . o of each query of a block, by two threads: to `facts` and the workspace.
__device__ void make_delta(const Backward<BFloat16>& task, const Place& place, QueryFacts& facts) {
  const Shape& shape = task.shape;
  const int row = static_cast<int>(threadIdx.x) / 2;
  const std::int64_t query = place.first + row;
  float sum = 0.0F;
  const std::int64_t number = (place.batch * shape.heads + place.head) * shape.queries + query;
  if (query < shape.queries) {
    const BFloat16* const dout = task.dout.at(place.batch, query, place.head);
    const BFloat16* const o = task.o.at(place.batch, query, place.head);
    constexpr std::int64_t kBoth = std::int64_t{2} * kPack;
    for (std::int64_t c = threadIdx.x % 2 == 0 ? 0 : kPack; c < shape.channels; c += kBoth) {
      const Floats<kPack> a = load<kPack>(dout + c);
      const Floats<kPack> b = load<kPack>(o + c);
      for (int i = 0; i < kPack; ++i) {
        sum = fmaf(a.at[i], b.at[i], sum);
      }
    }
  }
  sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
  if (query < shape.queries && threadIdx.x % 2 == 0) {
    task.delta[number] = sum;
    facts.delta[row] = sum;
    facts.lse[row] = task.lse[number] * kLog2E;
  }
}

// The weights and slopes of pairs of the warp's rows with 16 of a tile, in place of their products.
// kRowsAreQueries: else they are keys, and the tile's rows queries.
template <bool kRowsAreQueries, class Seen>
__device__ void weigh_pairs(
    float scale, const Seen& seen, const QueryFacts& facts, int first, FragmentC (*pairs)[2]) {
  for (int n = 0; n < 2; ++n) {
    for (int i = 0; i < 4; ++i) {
      const int row = row_of(i);
      const int column = first + column_of(n, i);
      const int query = kRowsAreQueries ? row : column;
      const int key = kRowsAreQueries ? column : row;
      weigh_pair(seen(query, key),
                 scale,
                 facts.lse[query],
                 facts.delta[query],
                 pairs[0][n].at[i],
                 pairs[1][n].at[i]);
    }
  }
}

template <int D>
__global__ void __launch_bounds__(kFlashThreads, kBlocks<D>)
    flash_query_gradients(Backward<BFloat16> task, Ranges ranges) {
  alignas(16) __shared__ std::uint16_t k[kTileElements<D>];
  alignas(16) __shared__ std::uint16_t v[kTileElements<D>];
  __shared__ Ids query_ids;
  __shared__ Ids key_ids;
  __shared__ QueryFacts facts;
  const Shape& shape = task.shape;
  const std::int64_t count = tiles_of(shape.batch, shape.heads, shape.queries);
  for (std::int64_t number = blockIdx.x; number < count; number += gridDim.x) {
    const Place place = Place::of(number, shape.batch, shape.heads, shape.queries);
    __syncthreads();
    load_tile<D>(query_rows(task.q, task, place), k);
    load_tile<D>(query_rows(task.dout, task, place), v);
    make_delta(task, place, facts);
    load_query_ids(task, place, query_ids);
    __syncthreads();
    FragmentA q[D / 16];
    FragmentA dout[D / 16];
    load_fragments<D>({k}, q);
    load_fragments<D>({v}, dout);
    FragmentC dq[D / 8] = {};
    walk_keys<D>(task, ranges, place, {key_ids, k, v}, [&](bool all_seen) {
      for (int first = 0; first < kTile; first += 16) {
        FragmentC pairs[2][2];  // weights and slopes
        dot_rows<D>(q, {k}, first, pairs[0]);
        dot_rows<D>(dout, {v}, first, pairs[1]);
        with_mask(all_seen, query_ids, key_ids, task.mask.causal, [&](const auto& seen) {
          weigh_pairs<true>(task.scale, seen, facts, first, pairs);
        });
        add_rows<D>(pairs[1], {k}, first, dq);
      }
    });
    const float factors[2] = {task.scale, task.scale};
    store_rows<D>(dq, factors, query_rows(task.dq, task, warp_place(place)));
  }
}

// Takes a head's queries of a tile, and what they bring, to shared memory.
template <int D>
__device__ void load_queries(const Backward<BFloat16>& task,
                             const Place& place,
                             std::uint16_t* q,
                             std::uint16_t* dout,
                             QueryFacts& facts) {
  const Shape& shape = task.shape;
  load_tile<D>(query_rows(task.q, task, place), q);
  load_tile<D>(query_rows(task.dout, task, place), dout);
  const std::int64_t query = place.first + threadIdx.x;
  if (threadIdx.x < kTile && query < shape.queries) {
    const std::int64_t number = (place.batch * shape.heads + place.head) * shape.queries + query;
    facts.lse[threadIdx.x] = task.lse[number] * kLog2E;
    facts.delta[threadIdx.x] = task.delta[number];
  }
}

// As walk_keys(), over the queries of a block's keys: calls body(place, all_seen).
template <class Body>
__device__ void walk_queries(const Backward<BFloat16>& task,
                             const Ranges& ranges,
                             const Place& place,
                             const Body& body) {
  const Shape& shape = task.shape;
  const Walk walk = Walk::of(ranges.keys, shape.keys, ranges.queries, shape.queries, place);
  const auto sight = [&](const Range& keys, const Range& queries) {
    return sight_of(queries, keys, task.mask.causal);
  };
  visit_tiles(walk, sight, [&](int number, bool all_seen) {
    body(Place{.batch = place.batch, .head = 0, .first = std::int64_t{number} * kTile}, all_seen);
  });
}

// Behind flash_query_gradients(), whose delta it reads.
template <int D>
__global__ void __launch_bounds__(kFlashThreads, kBlocks<D>)
    flash_key_gradients(Backward<BFloat16> task, Ranges ranges) {
  alignas(16) __shared__ std::uint16_t q[kTileElements<D>];
  alignas(16) __shared__ std::uint16_t dout[kTileElements<D>];
  __shared__ Ids query_ids;
  __shared__ Ids key_ids;
  __shared__ QueryFacts facts;
  const Shape& shape = task.shape;
  const std::int64_t tiles = tiles_of(1, 1, shape.keys);
  const std::int64_t count = tiles_of(shape.batch, shape.kv_heads, shape.keys);
  for (std::int64_t number = blockIdx.x; number < count; number += gridDim.x) {
    Place place = Place::of(number, shape.batch, shape.kv_heads, shape.keys);
    place.first = (tiles - 1) * kTile - place.first;  // early keys are seen by most queries
    __syncthreads();
    load_tile<D>(key_rows(task.k, task, place), q);
    load_tile<D>(key_rows(task.v, task, place), dout);
    load_key_ids(task, place, key_ids);
    __syncthreads();
    FragmentA k[D / 16];
    FragmentA v[D / 16];
    load_fragments<D>({q}, k);
    load_fragments<D>({dout}, v);
    FragmentC dk[D / 8] = {};
    FragmentC dv[D / 8] = {};
    walk_queries(task, ranges, place, [&](Place queries, bool all_seen) {
      for (std::int64_t h = 0; h < shape.group(); ++h) {
        queries.head = place.head * shape.group() + h;
        __syncthreads();  // the tile before is done with
        if (h == 0 && !all_seen) {
          load_query_ids(task, queries, query_ids);
        }
        load_queries<D>(task, queries, q, dout, facts);
        __syncthreads();
        for (int first = 0; first < kTile; first += 16) {
          FragmentC pairs[2][2];  // weights and slopes
          dot_rows<D>(k, {q}, first, pairs[0]);
          dot_rows<D>(v, {dout}, first, pairs[1]);
          with_mask(all_seen, query_ids, key_ids, task.mask.causal, [&](const auto& seen) {
            weigh_pairs<false>(task.scale, seen, facts, first, pairs);
          });
          add_rows<D>(pairs[0], {dout}, first, dv);
          add_rows<D>(pairs[1], {q}, first, dk);
        }
      }
    });
    const float factors[2] = {task.scale, task.scale};
    const float ones[2] = {1.0F, 1.0F};
    store_rows<D>(dk, factors, key_rows(task.dk, task, warp_place(place)));
    store_rows<D>(dv, ones, key_rows(task.dv, task, warp_place(place)));
  }
}

// Calls body.operator()<D>() with the least width that has all channels.
template <class Body>
void with_width(std::int64_t channels, const Body& body) {
  if (channels <= 32) {
    body.template operator()<32>();
  } else if (channels <= 64) {
    body.template operator()<64>();
  } else if (channels <= 96) {
    body.template operator()<96>();
  } else {
    body.template operator()<128>();
  }
}

// Launches find_ranges() and says what it fills.
template <class Task>
Ranges start_ranges(const Context& context,
                    const Task& task,
                    const std::int32_t* is_done,
                    std::span<std::byte> workspace) {
  const Shape& shape = task.shape;
  const Mask& mask = task.mask;
  TESSERA_CHECK(static_cast<std::int64_t>(workspace.size()) >= ranges_workspace_bytes(shape),
                "{} bytes of workspace for attention, expected {}",
                workspace.size(),
                ranges_workspace_bytes(shape));
  auto* const all = reinterpret_cast<Range*>(workspace.data());
  const std::int64_t of_queries = tiles_of(shape.batch, 1, shape.queries);
  const std::int64_t of_keys = tiles_of(shape.batch, 1, shape.keys);
  const Ranges ranges = {.queries = all, .keys = all + of_queries};
  launch(context,
         "ranges of attention",
         blocks_for(context, (of_queries + of_keys) * kLanes),
         find_ranges,
         IdRows{mask.query_positions, mask.query_documents, shape.queries},
         IdRows{mask.key_positions, mask.key_documents, shape.keys},
         shape.batch,
         is_done,
         ranges);
  return ranges;
}

// Blocks of the forward kernel. Where another one has most likely done its work, all they do is see
// that: no more than find a place at once, which loop where it has not.
std::int64_t blocks_of(const Context& context, const Forward<BFloat16>& task) {
  constexpr std::int64_t kAtOnce = 4;  // on a multiprocessor
  const std::int64_t tiles = tiles_of(task.shape.batch, task.shape.heads, task.shape.queries);
  return task.is_done == nullptr ? tiles : std::min(tiles, kAtOnce * context.multiprocessors());
}

}  // namespace

bool takes_flash(std::span<const View> heads) {
  for (const View& view : heads) {
    const bool apart = view.strides[0] % kPack != 0 || view.strides[1] % kPack != 0 ||
                       view.strides[2] % kPack != 0 ||
                       reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0;
    if (view.dtype != DType::kBF16 || view.sizes[3] % kPack != 0 ||
        view.sizes[3] > kMaxFlashChannels || apart) {
      return false;
    }
  }
  return true;
}

std::int64_t ranges_workspace_bytes(const Shape& shape) {
  return (tiles_of(shape.batch, 1, shape.queries) + tiles_of(shape.batch, 1, shape.keys)) *
         std::int64_t{sizeof(Range)};
}

void run_flash(const Context& context,
               const Forward<BFloat16>& task,
               std::span<std::byte> workspace) {
  const Ranges ranges = start_ranges(context, task, task.is_done, workspace);
  with_width(task.shape.channels, [&]<int D>() {
    launch<kFlashThreads>(
        context, "attention", blocks_of(context, task), flash_attend<D>, task, ranges);
  });
}

void run_flash(const Context& context,
               const Backward<BFloat16>& task,
               std::span<std::byte> workspace) {
  const Shape& shape = task.shape;
  const Ranges ranges = start_ranges(context, task, nullptr, workspace);
  with_width(shape.channels, [&]<int D>() {
    launch<kFlashThreads>(context,
                          "attention_backward",
                          tiles_of(shape.batch, shape.heads, shape.queries),
                          flash_query_gradients<D>,
                          task,
                          ranges);
    launch<kFlashThreads>(context,
                          "attention_backward",
                          tiles_of(shape.batch, shape.kv_heads, shape.keys),
                          flash_key_gradients<D>,
                          task,
                          ranges);
  });
}

}  // namespace tessera::cuda
