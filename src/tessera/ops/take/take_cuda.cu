#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/ops/take/take.h"
#include "tessera/ops/take/take_operands.h"

namespace tessera {
namespace cuda {
namespace {

template <class T>
struct Take {
  const T* x;
  std::int64_t sequence_stride;
  std::int64_t position_stride;
  const std::int32_t* index;
  std::int64_t length;
  Matrix<T> y;
  Fault* fault;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    const std::int32_t position = index[row];
    if (position < 0 || position >= length) {
      report(fault, FaultKind::kTakeIndex, position, row, length);
      return;
    }
    for (int i = 0; i < N; ++i) {
      *y.at(row, column + i) = x[row * sequence_stride + position * position_stride + column + i];
    }
  }
};

}  // namespace
}  // namespace cuda

void run(const TakeAttrs& attrs, cuda::Context& context, const Views& views) {
  const TakeOperands of = by_name(attrs, views);
  const View& x = of.x;
  cuda::with_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Take<T> body = {.x = x.as<const T>(),
                                .sequence_stride = x.strides[0],
                                .position_stride = x.strides[1],
                                .index = cpu::flat<const std::int32_t>(of.index).data(),
                                .length = x.sizes[1],
                                .y = {of.y, 1},
                                .fault = context.fault()};
    cuda::for_each_pack(context, "take", {&of.y, 1}, 1, body);
  });
}

}  // namespace tessera
