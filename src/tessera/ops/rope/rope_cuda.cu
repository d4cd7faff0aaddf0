#include <algorithm>
#include <vector>

#include "tessera/backend/cuda/elements.h"
#include "tessera/ops/rope/rope.h"

// y may lie over x: a pair is written where it was read, and what is not rotated stays.

namespace tessera {
namespace cuda {
namespace {

constexpr std::size_t kMaxFrequencies = 512;

// By value, as an argument of the kernel.
struct Frequencies {
  float of[kMaxFrequencies];
  std::int64_t count;
};

__global__ void rope_table(Frequencies frequencies,
                           const std::int32_t* positions,
                           std::int64_t rows,
                           Matrix<float> table) {
  for (std::int64_t i = first_item(); i < rows * frequencies.count; i += num_threads()) {
    const std::int64_t row = i / frequencies.count;
    const std::int64_t pair = i % frequencies.count;
    // The angle is rounded to f32, its cosine and sine are of f64.
    const double angle = static_cast<float>(positions[row]) * frequencies.of[pair];
    *table.at(row, 2 * pair) = static_cast<float>(cos(angle));
    *table.at(row, 2 * pair + 1) = static_cast<float>(sin(angle));
  }
}

template <class T>
struct Rotation {
  Matrix<const T> x;
  Matrix<const float> table;
  Matrix<T> y;
  std::int64_t head_dim;
  std::int64_t rotated;  // elements of a head
  float sign;            // 1 to rotate, -1 to rotate back
};

template <class T>
__global__ void rotate(Rotation<T> task, std::int64_t rows, std::int64_t pairs) {
  for (std::int64_t i = first_item(); i < rows * pairs; i += num_threads()) {
    const std::int64_t row = i / pairs;
    const std::int64_t column = i % pairs * 2;
    const std::int64_t within = column % task.head_dim;
    const float even = widen(*task.x.at(row, column));
    const float odd = widen(*task.x.at(row, column + 1));
    const bool turns = within < task.rotated;
    const float cosine = turns ? *task.table.at(row, within) : 1.0F;
    const float sine = turns ? task.sign * *task.table.at(row, within + 1) : 0.0F;
    *task.y.at(row, column) =
        turns ? narrow<T>(even * cosine - odd * sine) : *task.x.at(row, column);
    *task.y.at(row, column + 1) =
        turns ? narrow<T>(odd * cosine + even * sine) : *task.x.at(row, column + 1);
  }
}

}  // namespace
}  // namespace cuda

void run(const RopeTableAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::vector<float> frequencies = rope_frequencies(attrs);
  TESSERA_REQUIRE(frequencies.size() <= cuda::kMaxFrequencies,
                  ErrorCode::kUnsupported,
                  "rope_table: heads {} wide on a CUDA device, expected at most {}",
                  attrs.head_dim,
                  2 * cuda::kMaxFrequencies);
  cuda::Frequencies by_value = {.of = {}, .count = static_cast<std::int64_t>(frequencies.size())};
  std::ranges::copy(frequencies, by_value.of);
  const std::span<const std::int32_t> positions = cpu::flat<const std::int32_t>(views.in[0]);
  const auto rows = static_cast<std::int64_t>(positions.size());
  cuda::launch(context,
               "rope_table",
               cuda::blocks_for(context, rows * by_value.count),
               cuda::rope_table,
               by_value,
               positions.data(),
               rows,
               cuda::Matrix<float>(views.out[0], 1));
}

void run(const RopeAttrs& attrs, cuda::Context& context, const Views& views) {
  const View::Rows x = views.in[0].rows(2);
  const std::int64_t pairs = x.width / 2;
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Rotation<T> task = {.x = {views.in[0], 2},
                                    .table = {views.in[1], 1},
                                    .y = {views.out[0], 2},
                                    .head_dim = views.in[0].sizes[3],
                                    .rotated = views.in[1].rows(1).width,
                                    .sign = attrs.inverse ? -1.0F : 1.0F};
    cuda::launch(context,
                 "rope",
                 cuda::blocks_for(context, x.count * pairs),
                 cuda::rotate<T>,
                 task,
                 x.count,
                 pairs);
  });
}

}  // namespace tessera
