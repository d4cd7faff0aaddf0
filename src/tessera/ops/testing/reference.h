#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "tessera/base/error.h"
#include "tessera/ir/view.h"
#include "tessera/ops/float8/float8_results.h"

// How references read and write their operands: whole tensors, row-major without gaps. Every
// floating element is f64.
namespace tessera::conformance {

template <class T>
std::span<T> elements_of(const View& view, DType dtype) {
  TESSERA_CHECK(view.dtype == dtype && view.is_contiguous(),
                "a reference got {}, expected contiguous {}",
                name(view.dtype),
                name(dtype));
  return {view.as<T>(), static_cast<std::size_t>(view.num_elements())};
}

inline std::span<double> reals(const View& view) {
  return elements_of<double>(view, DType::kF64);
}

inline std::span<std::int32_t> ids(const View& view) {
  return elements_of<std::int32_t>(view, DType::kI32);
}

// Bound of dim `index`; negative counts from the end.
inline std::size_t bound(const View& view, int index) {
  const int position = index < 0 ? index + view.num_dims : index;
  return static_cast<std::size_t>(view.sizes.at(static_cast<std::size_t>(position)));
}

// The last dim as columns, all others as rows.
struct RowsAndColumns {
  std::size_t rows;
  std::size_t columns;
};

inline RowsAndColumns rows_and_columns(const View& view) {
  const std::size_t columns = bound(view, -1);
  return {.rows = static_cast<std::size_t>(view.num_elements()) / columns, .columns = columns};
}

// What a fused op makes of y for products in 8-bit floats, the last of `results`.
void make_float8(const Float8Results& wanted, const View& y, std::span<const View> results);

}  // namespace tessera::conformance
