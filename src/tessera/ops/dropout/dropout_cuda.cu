#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/base/normal.h"
#include "tessera/ops/dropout/dropout_problem.h"

// Results are written where all operands of the same index were read: y may lie over x.

namespace tessera {
namespace cuda {
namespace {

constexpr int kWords = 4;  // of one philox block

template <class T>
struct DropoutTask {
  DropoutMask mask;
  DropoutPart part;
  const std::int32_t* sequences;
  const T* x;
  const T* bias;  // or null
  T* y;

  __device__ float kept(float value, float bias_here, std::uint32_t word) const {
    const float u = bias == nullptr ? value : rounded_to<T>(value + bias_here);
    // What is dropped is multiplied, so that a NaN stays one.
    return u * mask.factor(word);
  }
};

// What of a row has the words of one block, the first of them for element `first` of the row, which
// may be before it.
template <class T>
__device__ void drop_block(const DropoutTask<T>& task,
                           const DropoutRow& row,
                           std::int64_t first,
                           const std::uint32_t (&words)[kWords]) {
  for (int word = 0; word < kWords; ++word) {
    const std::int64_t c = first + word;
    if (c >= 0 && c < task.part.width()) {
      const float bias = task.bias == nullptr ? 0.0F : widen(task.bias[c]);
      task.y[row.to + c] = narrow<T>(task.kept(widen(task.x[row.from + c]), bias, words[word]));
    }
  }
}

// The same in one access, of a block within the row.
template <class T>
__device__ void drop_whole_block(const DropoutTask<T>& task,
                                 const DropoutRow& row,
                                 std::int64_t first,
                                 const std::uint32_t (&words)[kWords]) {
  Floats<kWords> values = load<kWords>(task.x + row.from + first);
  Floats<kWords> bias = {};
  if (task.bias != nullptr) {
    bias = load<kWords>(task.bias + first);
  }
  for (int word = 0; word < kWords; ++word) {
    values.at[word] = task.kept(values.at[word], bias.at[word], words[word]);
  }
  store(task.y + row.to + first, values);
}

// A thread takes a block of a row. kWhole: rows begin at a block and end with one, and so do the
// places in memory.
template <class T, bool kWhole>
__global__ void drop_elements(DropoutTask<T> task, std::int64_t blocks_of_row) {
  const std::int64_t count = task.part.rows() * blocks_of_row;
  for (std::int64_t i = first_item(); i < count; i += num_threads()) {
    const DropoutRow row = task.part.row(i / blocks_of_row);
    const std::int64_t block = row.place / kWords + i % blocks_of_row;
    std::uint32_t words[kWords] = {static_cast<std::uint32_t>(block),
                                   static_cast<std::uint32_t>(block >> 32),
                                   static_cast<std::uint32_t>(task.sequences[row.sequence]),
                                   0};
    philox_block(task.mask.key, words);
    const std::int64_t first = block * kWords - row.place;
    if constexpr (kWhole) {
      drop_whole_block(task, row, first, words);
    } else {
      drop_block(task, row, first, words);
    }
  }
}

template <class T>
bool moves_in_blocks(const DropoutTask<T>& task) {
  const auto is_whole = [](std::int64_t number) { return number % kWords == 0; };
  const auto is_aligned = [](const void* place) {
    return reinterpret_cast<std::uintptr_t>(place) % (kWords * sizeof(T)) == 0;
  };
  const DropoutPart& part = task.part;
  bool fits = is_whole(part.width()) && is_whole(part.whole[3]) && is_whole(part.first[3]) &&
              is_aligned(task.x) && is_aligned(task.y) && is_aligned(task.bias);
  for (int d = 0; d < 3; ++d) {
    fits = fits && (part.sizes[d] == 1 || (is_whole(part.from[d]) && is_whole(part.to[d])));
  }
  return fits;
}

}  // namespace
}  // namespace cuda

void run(const DropoutAttrs& attrs, cuda::Context& context, const Views& views) {
  const View& x = views.in[1];
  cuda::with_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::DropoutTask<T> task = {
        .mask = DropoutMask(attrs),
        .part = DropoutPart(attrs, x, views.out[0], context),
        .sequences = views.in[0].as<const std::int32_t>(),
        .x = x.as<const T>(),
        .bias = views.in.size() > 2 ? views.in[2].as<const T>() : nullptr,
        .y = views.out[0].as<T>()};
    const bool fits = moves_in_blocks(task);
    // A row that begins within a block and ends within another has one more.
    const std::int64_t blocks =
        fits ? task.part.width() / cuda::kWords : (task.part.width() + 6) / cuda::kWords;
    launch(context,
           "dropout",
           blocks_for(context, task.part.rows() * blocks),
           fits ? cuda::drop_elements<T, true> : cuda::drop_elements<T, false>,
           task,
           blocks);
  });
}

}  // namespace tessera
