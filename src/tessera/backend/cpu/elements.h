#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cpu/parallel.h"
#include "tessera/ir/dtype.h"
#include "tessera/ir/view.h"

namespace tessera::cpu {

// How many trailing dims are contiguous in every view. Throws kInternal unless all sizes are equal.
std::int32_t common_inner_dims(std::span<const View> views);

// Which variant of a kernel runs.
struct Form {
  bool bf16 = false;    // else f32
  bool stream = false;  // stores bypass the caches
};

// The form for `results`, which have the kernel's dtype and rows of `inner` trailing dims. Streams
// where every result is so large that no cache would keep it for the next op, has rows that begin
// on cache lines, and does not lie over an operand (whose lines are in the cache already). Throws
// kUnsupported for a dtype other than f32 and bf16.
Form form_of(std::span<const View> results, std::int32_t inner, std::span<const View> operands);

// Rows of `inner` trailing dims, typed.
template <class T>
struct RowsOf {
  T* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t width = 1;
  std::int64_t count = 1;

  explicit RowsOf(const View& view, std::int32_t inner = 1) : data(view.as<T>()) {
    const View::Rows rows = view.rows(inner);
    stride = rows.stride;
    width = rows.width;
    count = rows.count;
  }

  T* operator[](std::int64_t row) const { return data + row * stride; }
};

// The elements of a view without gaps; throws kInternal where there are any.
template <class T>
std::span<T> flat(const View& view) {
  const View::Rows rows = view.rows(view.num_dims);
  return {view.as<T>(), static_cast<std::size_t>(rows.width)};
}

// Where a kernel finds `size` contiguous elements of each view.
template <std::size_t N>
struct Segment {
  std::array<std::byte*, N> at = {};
  std::int64_t size = 0;

  template <class T>
  T* as(std::size_t view) const {
    return reinterpret_cast<T*>(at[view]);
  }
};

// Cuts views of equal sizes into segments that are contiguous in every view and calls
// kernel(Segment<N>) for each, on up to `threads` threads. `kernel` must not throw. Cuts inside a
// row lie on multiples of 1024 elements.
template <std::size_t N, class Kernel>
void parallel_segments(ThreadTeam& team, const std::array<View, N>& views, const Kernel& kernel) {
  const std::int32_t inner = common_inner_dims(views);
  std::array<View::Rows, N> rows = {};
  for (std::size_t i = 0; i < N; ++i) {
    rows[i] = views[i].rows(inner);
  }
  const auto run_segment = [&](std::int64_t row, Range columns) {
    Segment<N> segment = {.at = {}, .size = columns.end - columns.begin};
    for (std::size_t i = 0; i < N; ++i) {
      const std::int64_t element = row * rows[i].stride + columns.begin;
      segment.at[i] = views[i].template as<std::byte>() +
                      element * static_cast<std::int64_t>(size_bytes(views[i].dtype));
    }
    kernel(segment);
  };
  const std::int64_t count = rows[0].count;
  const std::int64_t width = rows[0].width;
  if (count == 1) {
    const Work elements = {.count = width, .elements = 1, .cut = 1024};
    parallel_ranges(team, elements, [&](Range columns) { run_segment(0, columns); });
    return;
  }
  parallel_ranges(team, {.count = count, .elements = width}, [&](Range range) {
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      run_segment(row, {.begin = 0, .end = width});
    }
  });
}

}  // namespace tessera::cpu
