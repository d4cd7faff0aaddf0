#include <array>
#include <cstdint>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/embedding/embedding_cuda.h"
#include "tessera/ops/embedding/embedding_operands.h"

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
  const EmbeddingOperands of = by_name(attrs, views);
  const std::array<View, 2> rows = {of.y, of.table};
  cuda::with_type(of.table.dtype, [&](auto element) {
    const cuda::LookUp<decltype(element)> body = {
        .table = {of.table, 1},
        .ids = cpu::flat<const std::int32_t>(of.ids).data(),
        .rows = cuda::rows_here(attrs, context, of.table.sizes[0]),
        .y = {of.y, 1},
        .fault = context.fault()};
    cuda::for_each_pack(context, "embedding", rows, 1, body);
  });
}

}  // namespace tessera
