#include <cstdint>

#include "tessera/backend/cuda/device/draw.h"
#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/base/normal.h"

namespace tessera::cuda {
namespace {

constexpr int kVariates = 4;  // of one philox block

struct NormalTask {
  std::uint64_t key;
  std::uint64_t first_block;
  std::int64_t skip;  // variates of the first block that belong to elements before
  float std;
  float cut_tail;
};

// A thread draws a block's variates at a time; aligned ones leave in one access.
template <class T, bool kAligned>
__global__ void draw_normal(NormalTask task, T* out, std::int64_t count) {
  const std::int64_t blocks = (task.skip + count + kVariates - 1) / kVariates;
  for (std::int64_t i = first_item(); i < blocks; i += num_threads()) {
    const std::uint64_t block = task.first_block + static_cast<std::uint64_t>(i);
    std::uint32_t words[kVariates] = {
        static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32U), 0, 0};
    philox_block(task.key, words);
    Floats<kVariates> values;
    for (int word = 0; word < kVariates; ++word) {
      values.at[word] = normal_from_bits(words[word], task.cut_tail) * task.std;
    }
    const std::int64_t place = i * kVariates - task.skip;
    if (kAligned && place + kVariates <= count) {
      store(out + place, values);
      continue;
    }
    for (int word = 0; word < kVariates; ++word) {
      if (place + word >= 0 && place + word < count) {
        out[place + word] = narrow<T>(values.at[word]);
      }
    }
  }
}

template <class T>
__global__ void fill_constant(float value, T* out, std::int64_t count) {
  for (std::int64_t i = first_item(); i < count; i += num_threads()) {
    out[i] = narrow<T>(value);
  }
}

}  // namespace

void draw_elements(const Context& context, const Initial& initial, const View& out) {
  const std::int64_t count = out.num_elements();
  TESSERA_CHECK(out.is_contiguous(), "a state with gaps");
  with_type(out.dtype, [&](auto type) {
    using T = decltype(type);
    T* const data = out.as<T>();
    if (initial.normal.std == 0.0F) {
      launch(context,
             "draw",
             count == 0 ? 0 : blocks_for(context, count),
             fill_constant<T>,
             initial.constant,
             data,
             count);
      return;
    }
    const NormalTask task = {.key = initial.key,
                             .first_block = initial.first / kVariates,
                             .skip = static_cast<std::int64_t>(initial.first % kVariates),
                             .std = initial.normal.std,
                             .cut_tail = cut_tail(initial.normal)};
    const bool aligned =
        task.skip == 0 && reinterpret_cast<std::uintptr_t>(data) % (kVariates * sizeof(T)) == 0;
    launch(context,
           "draw",
           count == 0 ? 0 : blocks_for(context, (task.skip + count + kVariates - 1) / kVariates),
           aligned ? draw_normal<T, true> : draw_normal<T, false>,
           task,
           data,
           count);
  });
}

}  // namespace tessera::cuda
