#include "tessera/ir/view.h"

#include "tessera/base/error.h"

namespace tessera {

std::int64_t View::num_elements() const {
  std::int64_t product = 1;
  for (std::int32_t i = 0; i < num_dims; ++i) {
    product *= sizes[static_cast<std::size_t>(i)];
  }
  return product;
}

View View::along_rows_of(const View& rows) const {
  const auto last = static_cast<std::size_t>(rows.num_dims - 1);
  TESSERA_CHECK(num_dims == 1 && rows.num_dims >= 1 && sizes[0] == rows.sizes[last],
                "a vector of {} along rows of {}",
                sizes[0],
                rows.sizes[last]);
  View result = {.data = data, .dtype = dtype, .num_dims = rows.num_dims, .sizes = rows.sizes};
  result.strides[last] = strides[0];
  return result;
}

bool View::is_contiguous() const {
  std::int64_t expected = 1;
  for (std::int32_t i = num_dims - 1; i >= 0; --i) {
    const auto dim = static_cast<std::size_t>(i);
    if (sizes[dim] != 1 && strides[dim] != expected) {
      return false;
    }
    expected *= sizes[dim];
  }
  return true;
}

View View::with_merged(std::int32_t count) const {
  if (count <= 1) {
    return *this;
  }
  View merged = *this;
  merged.num_dims = num_dims - count + 1;
  const auto last = static_cast<std::size_t>(merged.num_dims - 1);
  merged.sizes[last] = rows(count).width;
  merged.strides[last] = 1;
  return merged;
}

View::Rows View::rows(std::int32_t inner) const {
  Rows result;
  for (std::int32_t i = num_dims - 1; i >= num_dims - inner; --i) {
    const auto dim = static_cast<std::size_t>(i);
    TESSERA_CHECK(sizes[dim] == 1 || strides[dim] == result.width,
                  "dim {} has stride {}, expected {}",
                  i,
                  strides[dim],
                  result.width);
    result.width *= sizes[dim];
  }
  result.stride = result.width;
  std::int64_t expected = 0;  // stride of the next outer dim; 0 until one with more than one row
  for (std::int32_t i = num_dims - inner - 1; i >= 0; --i) {
    const auto dim = static_cast<std::size_t>(i);
    if (sizes[dim] == 1) {
      continue;
    }
    if (expected == 0) {
      result.stride = strides[dim];
    } else {
      TESSERA_CHECK(
          strides[dim] == expected, "dim {} has stride {}, expected {}", i, strides[dim], expected);
    }
    expected = strides[dim] * sizes[dim];
    result.count *= sizes[dim];
  }
  return result;
}

}  // namespace tessera
