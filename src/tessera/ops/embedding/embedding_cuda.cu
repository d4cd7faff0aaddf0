#include "tessera/backend/cuda/elements.h"
#include "tessera/comm/hierarchical.h"
#include "tessera/ops/embedding/embedding.h"

namespace tessera {
namespace cuda {
namespace {

// The rows of the table that lie here, and how many there are in all.
struct Rows {
  std::int64_t first;
  std::int64_t count;
  std::int64_t whole;
};

template <class Attrs>
Rows rows_here(const Attrs& attrs, Context& context, std::int64_t rows) {
  if (attrs.axes.empty()) {
    return {.first = 0, .count = rows, .whole = rows};
  }
  return {.first = place_along(context.levels(attrs.axes, TrafficClass::kTensor)) * rows,
          .count = rows,
          .whole = attrs.whole_vocab};
}

// The row here that holds an id, or -1.
__device__ inline std::int64_t row_of(std::int32_t id, const Rows& rows) {
  const std::int64_t row = id - rows.first;
  return row >= 0 && row < rows.count ? row : -1;
}

template <class T>
struct LookUp {
  Matrix<const T> table;
  const std::int32_t* ids;
  Rows rows;
  Matrix<T> y;
  Fault* fault;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    const std::int32_t id = ids[row];
    if (id < 0 || id >= rows.whole) {
      report(fault, FaultKind::kEmbeddingId, id, row, rows.whole);
      return;
    }
    const std::int64_t here = row_of(id, rows);
    store(y.at(row, column), here < 0 ? Floats<N>{} : load<N>(table.at(here, column)));
  }
};

// next[p]: the next position with the id of p, or -1; first[p]: whether no earlier one has it.
__global__ void find_occurrences(const std::int32_t* ids,
                                 std::int64_t count,
                                 std::int32_t* next,
                                 std::int32_t* first) {
  for (std::int64_t p = first_item(); p < count; p += num_threads()) {
    std::int64_t after = p + 1;
    while (after < count && ids[after] != ids[p]) {
      ++after;
    }
    std::int64_t before = p - 1;
    while (before >= 0 && ids[before] != ids[p]) {
      --before;
    }
    next[p] = after < count ? static_cast<std::int32_t>(after) : -1;
    first[p] = before < 0 ? 1 : 0;
  }
}

template <class T>
struct Gradient {
  Matrix<const T> dy;
  const std::int32_t* ids;
  const std::int32_t* next;
  const std::int32_t* first;
  Matrix<float> dtable;
  Rows rows;
  Fault* fault;
};

// A block takes the ids whose first position is its own. The sum is complete before it is added, so
// that it is bitwise a separate addition.
template <class T>
__global__ void add_rows(Gradient<T> task, std::int64_t count, std::int64_t width) {
  for (std::int64_t p = blockIdx.x; p < count; p += gridDim.x) {
    const std::int32_t id = task.ids[p];
    if (id < 0 || id >= task.rows.whole) {
      report(task.fault, FaultKind::kEmbeddingId, id, p, task.rows.whole);
      continue;
    }
    const std::int64_t here = row_of(id, task.rows);
    const bool adds = here >= 0 && task.first[p] != 0;
    for (std::int64_t c = threadIdx.x; c < width && adds; c += kThreads) {
      float sum = 0.0F;
      for (auto at = static_cast<std::int32_t>(p); at >= 0; at = task.next[at]) {
        sum += widen(*task.dy.at(at, c));
      }
      *task.dtable.at(here, c) += sum;
    }
  }
}

struct Clear {
  Matrix<float> y;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    for (int i = 0; i < N; ++i) {
      *y.at(row, column + i) = 0.0F;
    }
  }
};

}  // namespace
}  // namespace cuda

void run(const EmbeddingAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::array<View, 2> rows = {views.out[0], views.in[0]};
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    const cuda::LookUp<decltype(element)> body = {
        .table = {views.in[0], 1},
        .ids = cpu::flat<const std::int32_t>(views.in[1]).data(),
        .rows = cuda::rows_here(attrs, context, views.in[0].sizes[0]),
        .y = {views.out[0], 1},
        .fault = context.fault()};
    cuda::for_each_pack(context, "embedding", rows, 1, body);
  });
}

std::int64_t cuda_workspace_bytes(const EmbeddingBackwardAttrs& /*attrs*/,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return 2 * operands[1].num_elements() * static_cast<std::int64_t>(sizeof(std::int32_t));
}

void run(const EmbeddingBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::span<const std::int32_t> ids = cpu::flat<const std::int32_t>(views.in[1]);
  const auto count = static_cast<std::int64_t>(ids.size());
  auto* const next = reinterpret_cast<std::int32_t*>(views.workspace.data());
  std::int32_t* const first = next + count;
  const char* const name = "embedding_backward";
  if (attrs.accumulate) {
    TESSERA_CHECK(views.out[0].data == views.in[2].data, "the accumulator is updated in place");
  } else {
    cuda::for_each_pack(context, name, views.out.first(1), 1, cuda::Clear{.y = {views.out[0], 1}});
  }
  cuda::launch(context,
               name,
               cuda::blocks_for(context, count),
               cuda::find_occurrences,
               ids.data(),
               count,
               next,
               first);
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Gradient<T> task = {.dy = {views.in[0], 1},
                                    .ids = ids.data(),
                                    .next = next,
                                    .first = first,
                                    .dtable = {views.out[0], 1},
                                    .rows = cuda::rows_here(attrs, context, attrs.vocab),
                                    .fault = context.fault()};
    cuda::launch(context,
                 name,
                 cuda::blocks_of_rows(context, count),
                 cuda::add_rows<T>,
                 task,
                 count,
                 views.in[0].rows(1).width);
  });
}

}  // namespace tessera
