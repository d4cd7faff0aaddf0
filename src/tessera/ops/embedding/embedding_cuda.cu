#include <array>
#include <cstdint>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/embedding/embedding_cuda.h"

namespace tessera {
namespace cuda {
namespace {

template <class T>
struct LookUp {
  Matrix<const T> table;
  const std::int32_t* ids;
  TableRows rows;
  Matrix<T> y;
  Fault* fault;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    const std::int32_t id = ids[row];
    if (!rows.knows(id)) {
      report(fault, FaultKind::kEmbeddingId, id, row, rows.whole);
      return;
    }
    store(y.at(row, column),
          rows.has(id) ? load<N>(table.at(id - rows.first, column)) : Floats<N>{});
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

}  // namespace tessera
