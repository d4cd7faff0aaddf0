#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/products/gemm.h"
#include "tessera/ops/batched_product/batched_product_cuda.h"

namespace tessera {
namespace cuda {
namespace {

// Where sums of a sequence go: (s, g, d) with contiguous d.
template <class T>
struct SumsTask {
  const float* sums;  // (g, s, d)
  T* out;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t pitch;
  std::int64_t head_stride;
};

template <class T>
__global__ void round_sums(SumsTask<T> task, std::int64_t count) {
  for (std::int64_t i = first_item(); i < count; i += num_threads()) {
    const std::int64_t column = i % task.columns;
    const std::int64_t row = i / task.columns % task.rows;
    const std::int64_t head = i / task.columns / task.rows;
    task.out[head * task.head_stride + row * task.pitch + column] = narrow<T>(task.sums[i]);
  }
}

void store_sums(const Context& context,
                const BatchedGemms& all,
                const float* sums,
                std::int64_t sequence) {
  const std::int64_t count = all.y.heads() * all.gemm.m * all.gemm.n;
  with_type(all.y.dtype(), [&](auto element) {
    using T = decltype(element);
    const SumsTask<T> task = {.sums = sums,
                              .out = reinterpret_cast<T*>(all.y.at(sequence, 0)),
                              .rows = all.gemm.m,
                              .columns = all.gemm.n,
                              .pitch = all.y.pitch(),
                              .head_stride = all.y.head_stride()};
    launch(context, "batched_product", blocks_for(context, count), round_sums<T>, task, count);
  });
}

}  // namespace
}  // namespace cuda

// The first heads of all groups at a time, then the second ones: their matrices lie equally far
// apart.
void run(const BatchedProductAttrs& attrs, cuda::Context& context, const Views& views) {
  const BatchedGemms all(attrs, by_name(attrs, views));
  const bool sums_group = attrs.form == BatchedForm::kKeys;
  auto* const sums = reinterpret_cast<float*>(views.workspace.data());
  const std::span<std::byte> rest =
      views.workspace.subspan(static_cast<std::size_t>(cuda::bytes_of_sums(all)));
  const cuda::GemmBatch batch = {
      .count = all.a.heads() / all.group,
      .stride_a = all.a.head_stride() * all.group,
      .stride_b = all.b.head_stride() * (sums_group ? all.group : 1),
      .stride_c = all.adds_group ? all.gemm.m * all.gemm.n
                                 : all.y.head_stride() * (sums_group ? 1 : all.group)};
  for (std::int64_t sequence = 0; sequence < all.a.batch(); ++sequence) {
    for (std::int64_t head = 0; head < all.group; ++head) {
      Gemm gemm = all.gemm;
      gemm.accumulate = sums_group && head > 0;
      void* const y = all.y.at(sequence, sums_group ? 0 : head);
      context.gemms().run_batch(context.stream(),
                                gemm,
                                batch,
                                {.a = all.a.at(sequence, head),
                                 .b = all.b.at(sequence, sums_group ? head : 0),
                                 .c = all.adds_group ? sums : y},
                                rest);
    }
    if (all.adds_group) {
      cuda::store_sums(context, all, sums, sequence);
    }
  }
}

}  // namespace tessera
