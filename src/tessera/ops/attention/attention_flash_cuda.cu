// The forward pass of attention by tensor cores.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "tessera/ops/attention/flash_ranges_cuda.h"

namespace tessera::cuda::flash {
namespace {

constexpr float kLn2 = 0.6931471805599453F;

// Of the four lanes that have the same rows of C.
__device__ float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, 2));
}

__device__ float row_sum(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFU, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFU, value, 2);
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

// Makes products of queries and keys scores, in units of ln 2, and leaves those for which
// seen(row, column) holds.
template <bool kCapped, class Seen>
__device__ void mask_scores(const ScoreForm& form, const Seen& seen, FragmentC* scores) {
  for (int n = 0; n < kTile / 8; ++n) {
    for (int i = 0; i < 4; ++i) {
      const bool is_seen = seen(row_of(i), column_of(n, i));
      const float product = scores[n].at[i];
      const float score = kCapped ? form.score(product) * kLog2E : product * (form.scale * kLog2E);
      scores[n].at[i] = is_seen ? score : -INFINITY;
    }
  }
}

// Goes on from what the steps before left: sums relative to lse, of which the total is then 1, in
// one of the four lanes that have the same rows.
template <int D, class Out>
__device__ void go_on(const Forward<BFloat16, Out>& task,
                      const Place& place,
                      Softmax& softmax,
                      FragmentC* o) {
  const Shape& shape = task.shape;
  for (int half = 0; half < 2; ++half) {
    const std::int64_t query = place.first + row_of(2 * half);
    if (query < shape.queries) {
      const float lse = task.carry_lse[shape.number_of(place.batch, place.head, query)];
      softmax.shift[half] = lse * kLog2E;
      softmax.total[half] = fragment_column() == 0 && lse != -INFINITY ? 1.0F : 0.0F;
    }
  }
  add_stored_rows<D>(query_rows(task.carry_o, task, warp_place(place)), o);
}

// Writes lse, and gives what the sums of a lane's two rows are multiplied by.
template <class Task>
__device__ void end_softmax(const Task& task,
                            const Place& place,
                            const Softmax& softmax,
                            float* factors) {
  const Shape& shape = task.shape;
  for (int half = 0; half < 2; ++half) {
    const float total = row_sum(softmax.total[half]);
    factors[half] = total > 0.0F ? 1.0F / total : 0.0F;
    const std::int64_t query = place.first + row_of(half == 0 ? 0 : 2);
    if (fragment_column() == 0 && query < shape.queries) {
      task.lse[shape.number_of(place.batch, place.head, query)] =
          total > 0.0F ? (softmax.shift[half] + log2f(total)) * kLn2 : -INFINITY;
    }
  }
}

// kCarries: it may go on from a step before; the others have no register for it.
template <int D, bool kCapped, bool kCarries, class Out>
__global__ void __launch_bounds__(kFlashThreads, kBlocks<D>)
    attend(Forward<BFloat16, Out> task, Ranges ranges) {
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
    FragmentC o[D / 8] = {};
    Softmax softmax = {{-INFINITY, -INFINITY}, {0.0F, 0.0F}};
    if constexpr (kCarries) {
      if (task.carry_lse != nullptr) {
        go_on<D>(task, place, softmax, o);
      }
    }
    __syncthreads();
    FragmentA q[D / 16];
    load_fragments<D>({k}, q);
    walk_keys<D>(task, ranges, place, {key_ids, k, v}, [&](bool all_seen) {
      FragmentC scores[kTile / 8];
      for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) {
        dot_rows<D>(q, {k}, static_cast<int>(16 * chunk), scores + 2 * chunk);
      }
      with_mask(all_seen, query_ids, key_ids, task.mask, [&](const auto& seen) {
        mask_scores<kCapped>(task.form, seen, scores);
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

// Blocks of the forward kernel. Where another one has most likely done its work, all they do is see
// that: no more than find a place at once, which loop where it has not.
template <class Task>
std::int64_t blocks_of(const Context& context, const Task& task) {
  constexpr std::int64_t kAtOnce = 4;  // on a multiprocessor
  const std::int64_t tiles = tiles_of(task.shape.batch, task.shape.heads, task.shape.queries);
  return task.is_done == nullptr ? tiles : std::min(tiles, kAtOnce * context.multiprocessors());
}

}  // namespace
}  // namespace tessera::cuda::flash

namespace tessera::cuda {

template <class Out>
void run_flash(const Context& context,
               const Forward<BFloat16, Out>& task,
               std::span<std::byte> workspace) {
  const flash::Ranges ranges =
      flash::start_ranges(context, task.shape, task.mask, task.is_done, workspace);
  flash::with_form(task, [&]<int D, bool kCapped>() {
    const auto start = [&](auto* kernel) {
      launch<flash::kFlashThreads>(
          context, "attention", flash::blocks_of(context, task), kernel, task, ranges);
    };
    if (std::is_same_v<Out, float> || task.carry_lse != nullptr) {
      start(flash::attend<D, kCapped, true, Out>);
    } else if constexpr (!std::is_same_v<Out, float>) {
      start(flash::attend<D, kCapped, false, Out>);
    }
  });
}

template void run_flash(const Context&, const Forward<BFloat16>&, std::span<std::byte>);
template void run_flash(const Context&, const Forward<BFloat16, float>&, std::span<std::byte>);

}  // namespace tessera::cuda
