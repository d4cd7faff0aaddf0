// Attention by tensor cores. A block of four warps takes 64 rows (queries, or in the last kernel
// keys), 16 a warp, and walks over what they pair with in tiles of 64, which lie in shared memory.
// Scores are made, weighed and used again in registers. A tile none of whose pairs is seen is
// passed over. Every sum has one order: bitwise reproducible.
//
// Source: Dao 2023, arXiv:2307.08691, without its atomic sums of dq, which has a kernel of its own.

#include <algorithm>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/tensor_cores.h"
#include "tessera/ops/attention/attention_cuda.h"

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

// Elements of a tile in shared memory.
template <int D>
constexpr int kTileElements = kTile * kPitch<D>;

// The ids of a tile's rows; rows behind the sequence's end have none.
struct Ids {
  std::int32_t position[kTile];
  std::int32_t document[kTile];
  std::int64_t count;
};

// What its positions and documents lie between.
struct Range {
  std::int32_t min_position;
  std::int32_t max_position;
  std::int32_t min_document;
  std::int32_t max_document;
};

__device__ std::int32_t warp_min(std::int32_t value) {
  for (int lanes = 1; lanes < kLanes; lanes *= 2) {
    const std::int32_t other = __shfl_xor_sync(0xFFFFFFFFU, value, lanes);
    value = other < value ? other : value;
  }
  return value;
}

__device__ std::int32_t warp_max(std::int32_t value) {
  for (int lanes = 1; lanes < kLanes; lanes *= 2) {
    const std::int32_t other = __shfl_xor_sync(0xFFFFFFFFU, value, lanes);
    value = other > value ? other : value;
  }
  return value;
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

// Each warp finds it for itself.
__device__ Range range_of(const Ids& ids) {
  Range range = {INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
  for (int i = lane(); i < ids.count; i += kLanes) {
    range.min_position = std::min(range.min_position, ids.position[i]);
    range.max_position = std::max(range.max_position, ids.position[i]);
    range.min_document = std::min(range.min_document, ids.document[i]);
    range.max_document = std::max(range.max_document, ids.document[i]);
  }
  return {warp_min(range.min_position),
          warp_max(range.max_position),
          warp_min(range.min_document),
          warp_max(range.max_document)};
}

// Whether some query may see some key.
__device__ bool may_see(const Range& queries, const Range& keys, bool causal) {
  return queries.min_document <= keys.max_document && keys.min_document <= queries.max_document &&
         (!causal || keys.min_position <= queries.max_position);
}

__device__ bool sees(const Ids& queries, const Ids& keys, int query, int key, bool causal) {
  return query < queries.count && key < keys.count &&
         queries.document[query] == keys.document[key] &&
         (!causal || keys.position[key] <= queries.position[query]);
}

// Copies rows [first, first + kTile) of a head to shared memory, with zeros behind the end of the
// sequence and of the channels. All threads call it.
template <int D>
__device__ void load_tile(const Heads<const BFloat16>& from,
                          std::int64_t batch,
                          std::int64_t head,
                          std::int64_t first,
                          std::int64_t length,
                          std::int64_t channels,
                          std::uint16_t* to) {
  using Words = Pack<std::uint32_t, 4>;
  constexpr int kPacks = D / kPack;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kPacks; i += kFlashThreads) {
    const int row = i / kPacks;
    const int channel = i % kPacks * kPack;
    Words words = {};
    if (first + row < length && channel < channels) {
      words = *reinterpret_cast<const Words*>(from.at(batch, first + row, head) + channel);
    }
    *reinterpret_cast<Words*>(to + row * kPitch<D> + channel) = words;
  }
}

// Writes the warp's rows of C fragments, times a factor for each of a lane's two rows.
template <int D>
__device__ void store_rows(const FragmentC* sums,
                           const float* factors,
                           const Heads<BFloat16>& to,
                           std::int64_t batch,
                           std::int64_t head,
                           std::int64_t first,
                           std::int64_t length,
                           std::int64_t channels) {
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first + fragment_row() + 8 * half;
    if (row >= length) {
      continue;
    }
    BFloat16* const out = to.at(batch, row, head);
    for (int n = 0; n < D / 8; ++n) {
      const int channel = 8 * n + fragment_column();
      if (channel < channels) {
        *reinterpret_cast<std::uint32_t*>(out + channel) = pack_two(
            sums[n].at[2 * half] * factors[half], sums[n].at[2 * half + 1] * factors[half]);
      }
    }
  }
}

// The warp's 16 rows of a tile, as A for every 16 channels.
template <int D>
__device__ void load_fragments(const Rows<D>& tile, int warp, FragmentA* fragments) {
  for (int c = 0; c < D / 16; ++c) {
    fragments[c] = tile.a(kWarpRows * warp, 16 * c);
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
  const FragmentA a = {{pack_two(weights[0].at[0], weights[0].at[1]),
                        pack_two(weights[0].at[2], weights[0].at[3]),
                        pack_two(weights[1].at[0], weights[1].at[1]),
                        pack_two(weights[1].at[2], weights[1].at[3])}};
  for (int c = 0; c < D / 16; ++c) {
    const TwoFragmentsB b = tile.b(first, 16 * c);
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
    const std::int64_t tiles = (length + kTile - 1) / kTile;
    return {.batch = number / heads % batches,
            .head = number % heads,
            .first = (tiles - 1 - number / heads / batches) * kTile};
  }
};

std::int64_t tiles_of(std::int64_t batches, std::int64_t heads, std::int64_t length) {
  return batches * heads * ((length + kTile - 1) / kTile);
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
      largest = fmaxf(largest, fmaxf(scores[n].at[2 * half], scores[n].at[2 * half + 1]));
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

// What the forward kernel and that of dq share: a walk over the keys of a block's queries. Calls
// tile(keys) for each tile that some query may see, with K and V in shared memory.
template <int D, class Task, class Tile>
__device__ void walk_keys(const Task& task,
                          const Place& place,
                          const Range& queries,
                          Ids& keys,
                          std::uint16_t* k,
                          std::uint16_t* v,
                          const Tile& tile) {
  const std::int64_t length = task.shape.keys;
  const std::int64_t group = place.head / task.shape.group();
  for (std::int64_t first = 0; first < length; first += kTile) {
    __syncthreads();  // the tile before is done with
    load_ids(task.mask.key_positions + place.batch * length,
             task.mask.key_documents + place.batch * length,
             first,
             length,
             keys);
    __syncthreads();
    if (!may_see(queries, range_of(keys), task.mask.causal)) {
      continue;
    }
    load_tile<D>(task.k, place.batch, group, first, length, task.shape.channels, k);
    load_tile<D>(task.v, place.batch, group, first, length, task.shape.channels, v);
    __syncthreads();
    tile();
  }
}

// The ids of a block's own queries; with a barrier behind.
template <class Task>
__device__ Range
load_query_ids(const Task& task, std::int64_t batch, std::int64_t first, Ids& ids) {
  load_ids(task.mask.query_positions + batch * task.shape.queries,
           task.mask.query_documents + batch * task.shape.queries,
           first,
           task.shape.queries,
           ids);
  __syncthreads();
  return range_of(ids);
}

template <int D>
__global__ void __launch_bounds__(kFlashThreads) flash_attend(Forward<BFloat16> task) {
  alignas(16) __shared__ std::uint16_t k[kTileElements<D>];
  alignas(16) __shared__ std::uint16_t v[kTileElements<D>];
  __shared__ Ids query_ids;
  __shared__ Ids key_ids;
  const Shape& shape = task.shape;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const std::int64_t count = shape.batch * shape.heads * ((shape.queries + kTile - 1) / kTile);
  for (std::int64_t number = blockIdx.x; number < count; number += gridDim.x) {
    const Place place = Place::of(number, shape.batch, shape.heads, shape.queries);
    __syncthreads();
    load_tile<D>(task.q, place.batch, place.head, place.first, shape.queries, shape.channels, k);
    const Range range = load_query_ids(task, place.batch, place.first, query_ids);
    FragmentA q[D / 16];
    load_fragments<D>({k}, warp, q);
    FragmentC o[D / 8] = {};
    Softmax softmax = {{-INFINITY, -INFINITY}, {0.0F, 0.0F}};
    walk_keys<D>(task, place, range, key_ids, k, v, [&] {
      FragmentC scores[kTile / 8];
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        dot_rows<D>(q, {k}, 16 * chunk, scores + 2 * chunk);
      }
      for (int n = 0; n < kTile / 8; ++n) {
        for (int i = 0; i < 4; ++i) {
          const int query = kWarpRows * warp + fragment_row() + 8 * (i / 2);
          const int key = 8 * n + fragment_column() + i % 2;
          const bool seen = sees(query_ids, key_ids, query, key, task.mask.causal);
          scores[n].at[i] = seen ? scores[n].at[i] * (task.scale * kLog2E) : -INFINITY;
        }
      }
      float kept[2];
      take_scores(scores, softmax, kept);
      for (FragmentC& sum : o) {
        for (int i = 0; i < 4; ++i) {
          sum.at[i] *= kept[i / 2];
        }
      }
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        add_rows<D>(scores + 2 * chunk, {v}, 16 * chunk, o);
      }
    });
    float factors[2];
    for (int half = 0; half < 2; ++half) {
      const float total = row_sum(softmax.total[half]);
      factors[half] = total > 0.0F ? 1.0F / total : 0.0F;
      const std::int64_t query = place.first + kWarpRows * warp + fragment_row() + 8 * half;
      if (fragment_column() == 0 && query < shape.queries) {
        task.lse[(place.batch * shape.heads + place.head) * shape.queries + query] =
            total > 0.0F ? (softmax.shift[half] + log2f(total)) * kLn2 : -INFINITY;
      }
    }
    store_rows<D>(o,
                  factors,
                  task.o,
                  place.batch,
                  place.head,
                  place.first + kWarpRows * warp,
                  shape.queries,
                  shape.channels);
  }
}

// What a query brings to the gradients: of 2^(score - lse) and of its score's slope.
struct QueryFacts {
  float lse[kTile];  // in units of ln 2
  float delta[kTile];
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
    for (std::int64_t c = threadIdx.x % 2 * kPack; c < shape.channels; c += 2 * kPack) {
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

template <int D>
__global__ void __launch_bounds__(kFlashThreads) flash_query_gradients(Backward<BFloat16> task) {
  alignas(16) __shared__ std::uint16_t k[kTileElements<D>];
  alignas(16) __shared__ std::uint16_t v[kTileElements<D>];
  __shared__ Ids query_ids;
  __shared__ Ids key_ids;
  __shared__ QueryFacts facts;
  const Shape& shape = task.shape;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const std::int64_t count = shape.batch * shape.heads * ((shape.queries + kTile - 1) / kTile);
  for (std::int64_t number = blockIdx.x; number < count; number += gridDim.x) {
    const Place place = Place::of(number, shape.batch, shape.heads, shape.queries);
    __syncthreads();
    load_tile<D>(task.q, place.batch, place.head, place.first, shape.queries, shape.channels, k);
    load_tile<D>(task.dout, place.batch, place.head, place.first, shape.queries, shape.channels, v);
    make_delta(task, place, facts);
    const Range range = load_query_ids(task, place.batch, place.first, query_ids);
    FragmentA q[D / 16];
    FragmentA dout[D / 16];
    load_fragments<D>({k}, warp, q);
    load_fragments<D>({v}, warp, dout);
    FragmentC dq[D / 8] = {};
    walk_keys<D>(task, place, range, key_ids, k, v, [&] {
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        FragmentC scores[2];
        FragmentC slopes[2];
        dot_rows<D>(q, {k}, 16 * chunk, scores);
        dot_rows<D>(dout, {v}, 16 * chunk, slopes);
        for (int n = 0; n < 2; ++n) {
          for (int i = 0; i < 4; ++i) {
            const int query = kWarpRows * warp + fragment_row() + 8 * (i / 2);
            const int key = 16 * chunk + 8 * n + fragment_column() + i % 2;
            weigh_pair(sees(query_ids, key_ids, query, key, task.mask.causal),
                       task.scale,
                       facts.lse[query],
                       facts.delta[query],
                       scores[n].at[i],
                       slopes[n].at[i]);
          }
        }
        add_rows<D>(slopes, {k}, 16 * chunk, dq);
      }
    });
    const float factors[2] = {task.scale, task.scale};
    store_rows<D>(dq,
                  factors,
                  task.dq,
                  place.batch,
                  place.head,
                  place.first + kWarpRows * warp,
                  shape.queries,
                  shape.channels);
  }
}

// Adds what the queries of a tile give to the gradients of the warp's keys.
template <int D>
__device__ void add_queries(const Backward<BFloat16>& task,
                            const Ids& query_ids,
                            const Ids& key_ids,
                            const QueryFacts& facts,
                            const FragmentA* k,
                            const FragmentA* v,
                            const Rows<D>& q,
                            const Rows<D>& dout,
                            FragmentC* dk,
                            FragmentC* dv) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    FragmentC scores[2];
    FragmentC slopes[2];
    dot_rows<D>(k, q, 16 * chunk, scores);
    dot_rows<D>(v, dout, 16 * chunk, slopes);
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int key = kWarpRows * warp + fragment_row() + 8 * (i / 2);
        const int query = 16 * chunk + 8 * n + fragment_column() + i % 2;
        weigh_pair(sees(query_ids, key_ids, query, key, task.mask.causal),
                   task.scale,
                   facts.lse[query],
                   facts.delta[query],
                   scores[n].at[i],
                   slopes[n].at[i]);
      }
    }
    add_rows<D>(scores, dout, 16 * chunk, dv);
    add_rows<D>(slopes, q, 16 * chunk, dk);
  }
}

// Behind flash_query_gradients(), whose delta it reads.
template <int D>
__global__ void __launch_bounds__(kFlashThreads) flash_key_gradients(Backward<BFloat16> task) {
  alignas(16) __shared__ std::uint16_t q[kTileElements<D>];
  alignas(16) __shared__ std::uint16_t dout[kTileElements<D>];
  __shared__ Ids query_ids;
  __shared__ Ids key_ids;
  __shared__ QueryFacts facts;
  const Shape& shape = task.shape;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const std::int64_t count = shape.batch * shape.kv_heads * ((shape.keys + kTile - 1) / kTile);
  for (std::int64_t number = blockIdx.x; number < count; number += gridDim.x) {
    Place place = Place::of(number, shape.batch, shape.kv_heads, shape.keys);
    // Early keys are seen by most queries.
    place.first = (shape.keys + kTile - 1) / kTile * kTile - kTile - place.first;
    __syncthreads();
    load_tile<D>(task.k, place.batch, place.head, place.first, shape.keys, shape.channels, q);
    load_tile<D>(task.v, place.batch, place.head, place.first, shape.keys, shape.channels, dout);
    load_ids(task.mask.key_positions + place.batch * shape.keys,
             task.mask.key_documents + place.batch * shape.keys,
             place.first,
             shape.keys,
             key_ids);
    __syncthreads();
    const Range keys = range_of(key_ids);
    FragmentA k[D / 16];
    FragmentA v[D / 16];
    load_fragments<D>({q}, warp, k);
    load_fragments<D>({dout}, warp, v);
    FragmentC dk[D / 8] = {};
    FragmentC dv[D / 8] = {};
    const std::int64_t first_head = place.head * shape.group();
    for (std::int64_t first = 0; first < shape.queries; first += kTile) {
      __syncthreads();
      const Range queries = load_query_ids(task, place.batch, first, query_ids);
      if (!may_see(queries, keys, task.mask.causal)) {
        continue;
      }
      for (std::int64_t head = first_head; head < first_head + shape.group(); ++head) {
        __syncthreads();
        load_tile<D>(task.q, place.batch, head, first, shape.queries, shape.channels, q);
        load_tile<D>(task.dout, place.batch, head, first, shape.queries, shape.channels, dout);
        if (threadIdx.x < query_ids.count) {
          const std::int64_t query =
              (place.batch * shape.heads + head) * shape.queries + first + threadIdx.x;
          facts.lse[threadIdx.x] = task.lse[query] * kLog2E;
          facts.delta[threadIdx.x] = task.delta[query];
        }
        __syncthreads();
        add_queries<D>(task, query_ids, key_ids, facts, k, v, {q}, {dout}, dk, dv);
      }
    }
    const float factors[2] = {task.scale, task.scale};
    const float ones[2] = {1.0F, 1.0F};
    const std::int64_t rows = place.first + kWarpRows * warp;
    store_rows<D>(dk, factors, task.dk, place.batch, place.head, rows, shape.keys, shape.channels);
    store_rows<D>(dv, ones, task.dv, place.batch, place.head, rows, shape.keys, shape.channels);
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

void run_flash(const Context& context, const Forward<BFloat16>& task) {
  const Shape& shape = task.shape;
  with_width(shape.channels, [&]<int D>() {
    launch<kFlashThreads>(context,
                          "attention",
                          tiles_of(shape.batch, shape.heads, shape.queries),
                          flash_attend<D>,
                          task);
  });
}

void run_flash(const Context& context, const Backward<BFloat16>& task) {
  const Shape& shape = task.shape;
  with_width(shape.channels, [&]<int D>() {
    launch<kFlashThreads>(context,
                          "attention_backward",
                          tiles_of(shape.batch, shape.heads, shape.queries),
                          flash_query_gradients<D>,
                          task);
    launch<kFlashThreads>(context,
                          "attention_backward",
                          tiles_of(shape.batch, shape.kv_heads, shape.keys),
                          flash_key_gradients<D>,
                          task);
  });
}

}  // namespace tessera::cuda
