#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/ir/dtype.h"

namespace tessera {

constexpr std::size_t kMaxDims = 6;

// A tensor in memory as a kernel sees it: borrowed data with sizes and strides in elements. The
// last dims of slices may be contiguous while the leading ones are not.
struct View {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::int32_t num_dims = 0;
  std::array<std::int64_t, kMaxDims> sizes = {};
  std::array<std::int64_t, kMaxDims> strides = {};

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  std::int64_t num_elements() const;

  // This vector as each row of a tensor with the sizes of `rows`, whose last dim is as long.
  View along_rows_of(const View& rows) const;

  // The last `count` dims as one. Throws kInternal unless they lie without gaps.
  View with_merged(std::int32_t count) const;

  // True when elements lie in row-major order without gaps.
  bool is_contiguous() const;

  // The dims [0, num_dims - inner) as one dim of rows: number of rows and the stride between them.
  // The inner dims must be contiguous and the rows evenly spaced; throws kInternal otherwise.
  struct Rows {
    std::int64_t count = 1;
    std::int64_t stride = 0;
    std::int64_t width = 1;  // elements in one row
  };

  Rows rows(std::int32_t inner) const;
};

// What a kernel gets: operands, results, and workspace bytes (aligned to 64) of the size that the
// op's workspace_bytes() asked for.
struct Views {
  std::span<const View> in;
  std::span<const View> out;
  std::span<std::byte> workspace;
};

}  // namespace tessera
