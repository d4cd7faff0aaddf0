#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tessera/backend/cpu/elements.h"
#include "tessera/ir/view.h"

namespace tessera {

// Whether the rows of `inner` dims have one distance, as View::rows() wants them.
inline bool has_even_rows(const View& view, std::int32_t inner) {
  std::int64_t expected = 0;  // of the next outer dim; 0 until one with more than one row
  for (std::int32_t i = view.num_dims - inner - 1; i >= 0; --i) {
    const auto dim = static_cast<std::size_t>(i);
    if (view.sizes[dim] == 1) {
      continue;
    }
    if (expected != 0 && view.strides[dim] != expected) {
      return false;
    }
    expected = view.strides[dim] * view.sizes[dim];
  }
  return true;
}

// `view` at `index` of its first dim.
inline View at_first(const View& view, std::int64_t index) {
  View inner = view;
  inner.num_dims = view.num_dims - 1;
  for (std::int32_t i = 0; i < inner.num_dims; ++i) {
    const auto dim = static_cast<std::size_t>(i);
    inner.sizes[dim] = view.sizes[dim + 1];
    inner.strides[dim] = view.strides[dim + 1];
  }
  const std::int64_t bytes =
      index * view.strides[0] * static_cast<std::int64_t>(size_bytes(view.dtype));
  inner.data = static_cast<std::byte*>(view.data) + bytes;
  return inner;
}

// Calls body(x, y) for two views of equal sizes or, where their rows have no one distance (some
// tokens of each of several sequences), for each index of the first dim.
template <class Body>
void for_even_rows(const View& x, const View& y, const Body& body) {
  const std::int32_t inner = cpu::common_inner_dims(std::array<View, 2>{x, y});
  if (x.num_dims == 0 || (has_even_rows(x, inner) && has_even_rows(y, inner))) {
    body(x, y);
    return;
  }
  for (std::int64_t i = 0; i < x.sizes[0]; ++i) {
    for_even_rows(at_first(x, i), at_first(y, i), body);
  }
}

}  // namespace tessera
