// The gradients of attention by tensor cores: first of queries, then of keys and values.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "tessera/ops/attention/flash_ranges_cuda.h"

namespace tessera::cuda::flash {
namespace {

// What the gradients need of each query of a tile.
struct QueryFacts {
  float lse[kTile];    // in units of ln 2
  float delta[kTile];  // dout . o
};

// The softmax weight of a pair, and the gradient of its score.
template <bool kCapped>
__device__ void weigh_pair(
    bool seen, const ScoreForm& form, float lse, float delta, float& score, float& slope) {
  const float capped = kCapped ? form.score(score) : 0.0F;
  const float exponent =
      kCapped ? fmaf(capped, kLog2E, -lse) : fmaf(score, form.scale * kLog2E, -lse);
  const float weight = seen ? exp2f(exponent) : 0.0F;
  const float left = kCapped ? form.slope(capped) : 1.0F;
  slope = seen ? weight * (slope - delta) * left : 0.0F;
  score = weight;
}

// delta = dout . o of each query of a block, by two threads: to `facts` and the workspace.
template <class Task>
__device__ void make_delta(const Task& task, const Place& place, QueryFacts& facts) {
  const Shape& shape = task.shape;
  const int row = static_cast<int>(threadIdx.x) / 2;
  const std::int64_t query = place.first + row;
  float sum = 0.0F;
  const std::int64_t number = shape.number_of(place.batch, place.head, query);
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
template <bool kRowsAreQueries, bool kCapped, class Seen>
__device__ void weigh_pairs(const ScoreForm& form,
                            const Seen& seen,
                            const QueryFacts& facts,
                            int first,
                            FragmentC (*pairs)[2]) {
  for (int n = 0; n < 2; ++n) {
    for (int i = 0; i < 4; ++i) {
      const int row = row_of(i);
      const int column = first + column_of(n, i);
      const int query = kRowsAreQueries ? row : column;
      const int key = kRowsAreQueries ? column : row;
      weigh_pair<kCapped>(seen(query, key),
                          form,
                          facts.lse[query],
                          facts.delta[query],
                          pairs[0][n].at[i],
                          pairs[1][n].at[i]);
    }
  }
}

// Writes dq of the warp's queries, times the scale, on top of what the steps before brought.
template <int D, class Out>
__device__ void store_dq(const Backward<BFloat16, Out>& task, const Place& place, FragmentC* dq) {
  const float factors[2] = {task.form.scale, task.form.scale};
  const float ones[2] = {1.0F, 1.0F};
  scale_rows<D>(dq, factors);
  if constexpr (std::is_same_v<Out, float>) {
    if (task.carry.data != nullptr) {
      add_stored_rows<D>(query_rows(task.carry, task, place), dq);
    }
  }
  store_rows<D>(dq, ones, query_rows(task.dq, task, place));
}

template <int D, bool kCapped, class Out>
__global__ void __launch_bounds__(kFlashThreads, kBlocks<D>)
    query_gradients(Backward<BFloat16, Out> task, Ranges ranges) {
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
        with_mask(all_seen, query_ids, key_ids, task.mask, [&](const auto& seen) {
          weigh_pairs<true, kCapped>(task.form, seen, facts, first, pairs);
        });
        add_rows<D>(pairs[1], {k}, first, dq);
      }
    });
    store_dq<D>(task, warp_place(place), dq);
  }
}

// Takes a head's queries of a tile, and what they bring, to shared memory.
template <int D, class Task>
__device__ void load_queries(const Task& task,
                             const Place& place,
                             std::uint16_t* q,
                             std::uint16_t* dout,
                             QueryFacts& facts) {
  const Shape& shape = task.shape;
  load_tile<D>(query_rows(task.q, task, place), q);
  load_tile<D>(query_rows(task.dout, task, place), dout);
  const std::int64_t query = place.first + threadIdx.x;
  if (threadIdx.x < kTile && query < shape.queries) {
    const std::int64_t number = shape.number_of(place.batch, place.head, query);
    facts.lse[threadIdx.x] = task.lse[number] * kLog2E;
    facts.delta[threadIdx.x] = task.delta[number];
  }
}

// As walk_keys(), over the queries of a block's keys: calls body(place, all_seen).
template <class Task, class Body>
__device__ void walk_queries(const Task& task,
                             const Ranges& ranges,
                             const Place& place,
                             const Body& body) {
  const Shape& shape = task.shape;
  const Walk walk = Walk::of(ranges.keys, shape.keys, ranges.queries, shape.queries, place);
  const auto sight = [&](const Range& keys, const Range& queries) {
    return sight_of(queries, keys, task.mask);
  };
  visit_tiles(walk, sight, [&](int number, bool all_seen) {
    body(Place{.batch = place.batch, .head = 0, .first = std::int64_t{number} * kTile}, all_seen);
  });
}

// Behind query_gradients(), whose delta it reads.
template <int D, bool kCapped, class Out>
__global__ void __launch_bounds__(kFlashThreads, kBlocks<D>)
    key_gradients(Backward<BFloat16, Out> task, Ranges ranges) {
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
          with_mask(all_seen, query_ids, key_ids, task.mask, [&](const auto& seen) {
            weigh_pairs<false, kCapped>(task.form, seen, facts, first, pairs);
          });
          add_rows<D>(pairs[0], {dout}, first, dv);
          add_rows<D>(pairs[1], {q}, first, dk);
        }
      }
    });
    const float factors[2] = {task.form.scale, task.form.scale};
    const float ones[2] = {1.0F, 1.0F};
    store_rows<D>(dk, factors, key_rows(task.dk, task, warp_place(place)));
    store_rows<D>(dv, ones, key_rows(task.dv, task, warp_place(place)));
  }
}

}  // namespace
}  // namespace tessera::cuda::flash

namespace tessera::cuda {

template <class Out>
void run_flash(const Context& context,
               const Backward<BFloat16, Out>& task,
               std::span<std::byte> workspace) {
  const Shape& shape = task.shape;
  const flash::Ranges ranges = flash::start_ranges(context, shape, task.mask, nullptr, workspace);
  flash::with_form(task, [&]<int D, bool kCapped>() {
    launch<flash::kFlashThreads>(context,
                                 "attention_backward",
                                 flash::tiles_of(shape.batch, shape.heads, shape.queries),
                                 flash::query_gradients<D, kCapped, Out>,
                                 task,
                                 ranges);
    launch<flash::kFlashThreads>(context,
                                 "attention_backward",
                                 flash::tiles_of(shape.batch, shape.kv_heads, shape.keys),
                                 flash::key_gradients<D, kCapped, Out>,
                                 task,
                                 ranges);
  });
}

template void run_flash(const Context&, const Backward<BFloat16>&, std::span<std::byte>);
template void run_flash(const Context&, const Backward<BFloat16, float>&, std::span<std::byte>);

}  // namespace tessera::cuda
