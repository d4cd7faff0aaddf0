// Positions are sorted by id, and go in stretches of this order, each of them summed by itself, so
// that neither the number of tokens nor how often one of them occurs makes a long chain. The order
// of a sum depends on the ids alone, those of other ranks' rows included.

#include <algorithm>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/kernels/workspace.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/embedding/embedding_cuda.h"
#include "tessera/ops/embedding/embedding_operands.h"

namespace tessera {
namespace cuda {
namespace {

constexpr const char* kName = "embedding_backward";

using Key = EmbeddingKey;

__device__ Key key_of(std::int32_t id, std::int64_t position) {
  return Key{static_cast<std::uint32_t>(id)} << 32U | static_cast<Key>(position);
}

__device__ std::int32_t id_of(Key key) {
  return static_cast<std::int32_t>(key >> 32U);
}

__device__ std::int64_t position_of(Key key) {
  return static_cast<std::uint32_t>(key);
}

// How many keys of keys[0, count), which are sorted, are less than `key`.
__device__ std::int64_t count_less(const Key* keys, std::int64_t count, Key key) {
  std::int64_t begin = 0;
  while (count > 0) {
    const std::int64_t half = count / 2;
    const bool is_less = keys[begin + half] < key;
    begin += is_less ? half + 1 : 0;
    count = is_less ? count - half - 1 : half;
  }
  return begin;
}

constexpr std::int64_t kTile = 512;

// tiles = the keys of the positions, every kTile of them sorted: a key's place is the number of
// lesser ones.
__global__ void sort_tiles(
    const std::int32_t* ids, std::int64_t count, TableRows rows, Key* tiles, Fault* fault) {
  __shared__ Key keys[kTile];
  for (std::int64_t first = blockIdx.x * kTile; first < count; first += gridDim.x * kTile) {
    const std::int64_t size = std::min(std::int64_t{kTile}, count - first);
    for (std::int64_t i = threadIdx.x; i < size; i += kThreads) {
      const std::int32_t id = ids[first + i];
      if (!rows.knows(id)) {
        report(fault, FaultKind::kEmbeddingId, id, first + i, rows.whole);
      }
      keys[i] = key_of(id, first + i);
    }
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < size; i += kThreads) {
      int place = 0;
      for (std::int64_t other = 0; other < size; ++other) {
        place += keys[other] < keys[i] ? 1 : 0;
      }
      tiles[first + place] = keys[i];
    }
    __syncthreads();  // before the next tile is read
  }
}

// sorted = the keys of all tiles in their order.
__global__ void merge_tiles(const Key* tiles, std::int64_t count, Key* sorted) {
  for (std::int64_t i = first_item(); i < count; i += num_threads()) {
    std::int64_t place = 0;
    for (std::int64_t first = 0; first < count; first += kTile) {
      place += count_less(tiles + first, std::min(std::int64_t{kTile}, count - first), tiles[i]);
    }
    sorted[place] = tiles[i];
  }
}

constexpr std::int64_t kStretch = kEmbeddingStretch;

// Columns of a warp, a pack a lane.
constexpr std::int64_t kColumns = std::int64_t{kWarp} * kPack;

template <class T>
struct Gradient {
  Matrix<const T> dy;
  const Key* sorted;
  std::int64_t count;
  std::int64_t width;
  TableRows rows;
  Matrix<float> dtable;
  float* partials;  // by stretch: of the run that began before it, and of that which goes on
  bool fits_dy;
  bool fits_dtable;

  constexpr std::int64_t stretches() const { return (count + kStretch - 1) / kStretch; }

  constexpr std::int64_t column_blocks() const { return (width + kColumns - 1) / kColumns; }

  constexpr std::int64_t warps() const { return stretches() * column_blocks(); }

  // Whether the run of the sorted position goes on behind it.
  __device__ bool goes_on(std::int64_t at) const {
    return at + 1 < count && id_of(sorted[at]) == id_of(sorted[at + 1]);
  }

  __device__ float* begun_before(std::int64_t stretch) const {
    return partials + 2 * stretch * width;
  }

  __device__ float* going_on(std::int64_t stretch) const { return begun_before(stretch) + width; }

  // Its partial sums lie as the table's rows do, but for the alignment of their rows.
  __device__ Floats<kPack> partial(const float* row, std::int64_t column) const {
    return load_pack(row + column, width - column, width % kPack == 0);
  }

  __device__ void keep_partial(const Floats<kPack>& sum, float* row, std::int64_t column) const {
    store_pack(row + column, sum, width - column, width % kPack == 0);
  }

  // What the sorted position adds; nothing where its row lies elsewhere.
  __device__ Floats<kPack> terms(std::int64_t at, std::int64_t column) const {
    if (!rows.has(id_of(sorted[at]))) {
      return {};
    }
    const T* const place = dy.at(position_of(sorted[at]), column);
    return load_pack(place, width - column, fits_dy);
  }

  // Takes the sum of a stretch's part of the run that ends at the sorted position, or leaves the
  // stretch behind it.
  __device__ void put(const Floats<kPack>& sum,
                      std::int64_t at,
                      std::int64_t column,
                      bool has_begun_before) const {
    if (!rows.has(id_of(sorted[at]))) {
      return;
    }
    if (has_begun_before) {
      keep_partial(sum, begun_before(at / kStretch), column);
    } else if (goes_on(at)) {
      keep_partial(sum, going_on(at / kStretch), column);
    } else {
      add_to_row(id_of(sorted[at]), sum, column);
    }
  }

  // The sum is complete before it is added, so that it is bitwise a separate addition.
  __device__ void add_to_row(std::int32_t id, const Floats<kPack>& sum, std::int64_t column) const {
    float* const place = dtable.at(id - rows.first, column);
    Floats<kPack> row = load_pack(place, width - column, fits_dtable);
    for (int i = 0; i < kPack; ++i) {
      row.at[i] += sum.at[i];
    }
    store_pack(place, row, width - column, fits_dtable);
  }
};

__device__ void add(const Floats<kPack>& terms, Floats<kPack>& sum) {
  for (int i = 0; i < kPack; ++i) {
    sum.at[i] += terms.at[i];
  }
}

// body(stretch, column) for the stretches and columns of this lane.
template <class T, class Body>
__device__ void each_stretch(const Gradient<T>& task, const Body& body) {
  for (std::int64_t i = first_item() / kWarp; i < task.warps(); i += num_threads() / kWarp) {
    const std::int64_t column =
        i % task.column_blocks() * kColumns + std::int64_t{threadIdx.x % kWarp} * kPack;
    if (column < task.width) {
      body(i / task.column_blocks(), column);
    }
  }
}

template <class T>
__global__ void sum_runs(Gradient<T> task) {
  each_stretch(task, [&](std::int64_t stretch, std::int64_t column) {
    constexpr int kAtOnce = 4;  // rows that are on their way together
    const std::int64_t begin = stretch * kStretch;
    const std::int64_t end = std::min(begin + kStretch, task.count);
    bool has_begun_before = begin > 0 && task.goes_on(begin - 1);
    Floats<kPack> sum = {};
    for (std::int64_t first = begin; first < end; first += kAtOnce) {
      Floats<kPack> terms[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        terms[i] = first + i < end ? task.terms(first + i, column) : Floats<kPack>();
      }
#pragma unroll
      for (int i = 0; i < kAtOnce && first + i < end; ++i) {
        const std::int64_t at = first + i;
        add(terms[i], sum);
        if (at + 1 == end || !task.goes_on(at)) {
          task.put(sum, at, column, has_begun_before);
          has_begun_before = false;
          sum = {};
        }
      }
    }
  });
}

// The runs that are in several stretches, each by the one in which it begins.
template <class T>
__global__ void join_runs(Gradient<T> task) {
  each_stretch(task, [&](std::int64_t stretch, std::int64_t column) {
    const std::int64_t last = std::min((stretch + 1) * kStretch, task.count) - 1;
    const std::int32_t id = id_of(task.sorted[last]);
    const bool begins_here = stretch == 0 || id_of(task.sorted[stretch * kStretch - 1]) != id;
    if (!task.goes_on(last) || !begins_here || !task.rows.has(id)) {
      return;
    }
    const std::int64_t end = count_less(task.sorted, task.count, key_of(id + 1, 0));
    const std::int64_t last_stretch = (end - 1) / kStretch;
    Floats<kPack> sum = task.partial(task.going_on(stretch), column);
#pragma unroll 4
    for (std::int64_t next = stretch + 1; next <= last_stretch; ++next) {
      add(task.partial(task.begun_before(next), column), sum);
    }
    task.add_to_row(id, sum, column);
  });
}

struct Clear {
  Matrix<float> y;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    store(y.at(row, column), Floats<N>{});
  }
};

template <class T>
void sum_by_id(const Context& context, const Gradient<T>& task) {
  const std::int64_t blocks = blocks_for(context, task.warps() * kWarp);
  launch(context, kName, blocks, sum_runs<T>, task);
  launch(context, kName, blocks, join_runs<T>, task);
}

}  // namespace
}  // namespace cuda

void run(const EmbeddingBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  const EmbeddingBackwardOperands of = by_name(attrs, views);
  const std::span<const std::int32_t> ids = cpu::flat<const std::int32_t>(of.ids);
  const auto count = static_cast<std::int64_t>(ids.size());
  const std::int64_t width = of.dy.rows(1).width;
  const cuda::TableRows rows = cuda::rows_here(attrs, context, attrs.vocab);
  const cuda::EmbeddingScratch scratch(
      cuda::aligned_workspace(views.workspace).data(), count, width);
  if (attrs.accumulate) {
    TESSERA_CHECK(of.dtable.data == of.accumulator.data, "the accumulator is updated in place");
  } else {
    cuda::for_each_pack(context, cuda::kName, {&of.dtable, 1}, 1, cuda::Clear{.y = {of.dtable, 1}});
  }
  cuda::launch(context,
               cuda::kName,
               cuda::blocks_of_rows(context, (count + cuda::kTile - 1) / cuda::kTile),
               cuda::sort_tiles,
               ids.data(),
               count,
               rows,
               scratch.tiles,
               context.fault());
  cuda::launch(context,
               cuda::kName,
               cuda::blocks_for(context, count),
               cuda::merge_tiles,
               scratch.tiles,
               count,
               scratch.sorted);
  cuda::with_type(of.dy.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Gradient<T> task = {.dy = {of.dy, 1},
                                    .sorted = scratch.sorted,
                                    .count = count,
                                    .width = width,
                                    .rows = rows,
                                    .dtable = {of.dtable, 1},
                                    .partials = scratch.partials,
                                    .fits_dy = cuda::fits_packs({&of.dy, 1}, 1),
                                    .fits_dtable = cuda::fits_packs({&of.dtable, 1}, 1)};
    cuda::sum_by_id(context, task);
  });
}

}  // namespace tessera
