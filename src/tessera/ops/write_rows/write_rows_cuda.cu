#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/ops/write_rows/write_rows.h"
#include "tessera/ops/write_rows/write_rows_operands.h"

namespace tessera {
namespace cuda {
namespace {

// A (b, rows, h, c) tensor with contiguous c.
template <class T>
struct Heads {
  T* data;
  std::int64_t strides[3];

  explicit Heads(const View& view)
      : data(view.as<T>()), strides{view.strides[0], view.strides[1], view.strides[2]} {}

  constexpr T* at(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    return data + batch * strides[0] + row * strides[1] + head * strides[2];
  }
};

struct Sizes {
  std::int64_t batch;
  std::int64_t tokens;  // of x, in a sequence
  std::int64_t heads;
  std::int64_t channels;
  std::int64_t slots;  // of y, in a sequence
};

// A block takes a token. Of several for one slot the last is written.
template <class T>
__global__ void write_rows(
    Heads<const T> x, Heads<T> y, const std::int32_t* slots, Sizes sizes, Fault* fault) {
  for (std::int64_t i = blockIdx.x; i < sizes.batch * sizes.tokens; i += gridDim.x) {
    const std::int64_t batch = i / sizes.tokens;
    const std::int32_t slot = slots[i];
    if (slot < -1 || slot >= sizes.slots) {
      report(fault, FaultKind::kWriteRowsSlot, slot, i, sizes.slots);
      continue;
    }
    bool written = slot >= 0;
    for (std::int64_t later = i + 1; later < (batch + 1) * sizes.tokens; ++later) {
      written = written && slots[later] != slot;
    }
    for (std::int64_t c = threadIdx.x; written && c < sizes.heads * sizes.channels; c += kThreads) {
      const std::int64_t head = c / sizes.channels;
      const std::int64_t channel = c % sizes.channels;
      y.at(batch, slot, head)[channel] = x.at(batch, i % sizes.tokens, head)[channel];
    }
  }
}

}  // namespace
}  // namespace cuda

void run(const WriteRowsAttrs& attrs, cuda::Context& context, const Views& views) {
  const WriteRowsOperands of = by_name(attrs, views);
  const View& x = of.x;
  const View& y = of.y;
  TESSERA_CHECK(x.strides[3] == 1 && y.strides[3] == 1, "write_rows: rows are not contiguous");
  const cuda::Sizes sizes = {.batch = x.sizes[0],
                             .tokens = x.sizes[1],
                             .heads = x.sizes[2],
                             .channels = x.sizes[3],
                             .slots = y.sizes[1]};
  cuda::with_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    cuda::launch(context,
                 "write_rows",
                 cuda::blocks_of_rows(context, sizes.batch * sizes.tokens),
                 cuda::write_rows<T>,
                 cuda::Heads<const T>(x),
                 cuda::Heads<T>(y),
                 cpu::flat<const std::int32_t>(of.slots).data(),
                 sizes,
                 context.fault());
  });
}

}  // namespace tessera
