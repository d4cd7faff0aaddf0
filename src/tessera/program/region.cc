#include "tessera/program/region.h"

#include <algorithm>

#include "tessera/base/checked.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

std::int64_t product(std::int64_t a, std::int64_t b, const TensorRef& tensor) {
  const auto result = checked_product(a, b);
  TESSERA_CHECK(result.has_value(), "{} reaches past 2^63 bytes", to_string(tensor));
  return *result;
}

// Adds an outer dim of `bound` steps of `stride` bytes.
void extend(Region& region, std::int64_t bound, std::int64_t stride, const TensorRef& tensor) {
  TESSERA_CHECK(bound > 0, "{} has a dim that is not positive", to_string(tensor));
  if (bound == 1) {
    return;
  }
  if (region.rows == 1 && stride == region.width) {
    region.width = product(region.width, bound, tensor);
    return;
  }
  if (region.rows == 1) {
    TESSERA_CHECK(stride > region.width, "elements of {} overlap", to_string(tensor));
    region.pitch = stride;
  }
  TESSERA_CHECK(stride == product(region.pitch, region.rows, tensor),
                "the strides of {} are not rows of one pitch",
                to_string(tensor));
  region.rows = product(region.rows, bound, tensor);
}

// Whether a row of `rows` shares a byte with [begin, end).
bool overlaps_stretch(const Region& rows, std::int64_t begin, std::int64_t end) {
  if (rows.contiguous()) {
    return rows.begin < end && begin < rows.end();
  }
  // The first row that ends after `begin`.
  const std::int64_t before = std::max<std::int64_t>(begin - rows.begin - rows.width, -1);
  const std::int64_t row = before < 0 ? 0 : before / rows.pitch + 1;
  return row < rows.rows && rows.begin + row * rows.pitch < end;
}

// First, pitch and number of a region's rows.
std::array<std::int64_t, 3> rows_of(const Region& region) {
  return {region.begin / region.pitch, region.pitch, region.rows};
}

}  // namespace

Region region_of(const TensorRef& tensor) {
  const auto element = static_cast<std::int64_t>(size_bytes(tensor.type.dtype));
  TESSERA_CHECK(tensor.strides.size() == tensor.type.num_dims(),
                "{} has strides of another rank",
                to_string(tensor));
  TESSERA_CHECK(tensor.offset >= 0 && tensor.offset % element == 0,
                "{} does not begin at an element of its buffer",
                to_string(tensor));
  Region region{.begin = tensor.offset, .width = element, .pitch = 0, .rows = 1};
  for (std::size_t i = tensor.type.num_dims(); i-- > 0;) {
    extend(region, tensor.type.dims[i].bound, product(tensor.strides[i], element, tensor), tensor);
  }
  const auto reach = checked_sum(region.begin, product(region.rows, region.pitch, tensor));
  TESSERA_CHECK(
      reach && checked_sum(*reach, region.width), "{} reaches past 2^63 bytes", to_string(tensor));
  return region;
}

bool overlap(const Region& a, const Region& b) {
  const Region& many = a.rows < b.rows ? b : a;
  const Region& few = a.rows < b.rows ? a : b;
  if (few.contiguous() || few.pitch != many.pitch) {
    for (std::int64_t row = 0; row < few.rows; ++row) {
      const std::int64_t begin = few.begin + row * few.pitch;
      if (overlaps_stretch(many, begin, begin + few.width)) {
        return true;
      }
    }
    return false;
  }
  // Rows of one pitch: only the two rows of `many` around a row of `few` can meet it, and they meet
  // the next one in the same way. What is left is whether the ranges of rows meet.
  const std::int64_t shift = many.begin - few.begin;
  const std::int64_t down =
      shift >= 0 ? shift / few.pitch : -((-shift + few.pitch - 1) / few.pitch);
  const std::int64_t column = shift - down * few.pitch;  // in [0, pitch)
  const auto rows_meet = [&](std::int64_t first_row) {   // of `many`, counted in rows of `few`
    return first_row < few.rows && first_row + many.rows > 0;
  };
  return (column < few.width && rows_meet(down)) ||
         (column + many.width > few.pitch && rows_meet(down + 1));
}

void Written::add(Region region) {
  if (!region.contiguous()) {
    const std::array<std::int64_t, 3> rows = rows_of(region);
    auto columns = std::ranges::lower_bound(columns_, rows, {}, &Columns::rows);
    if (columns == columns_.end() || columns->rows != rows) {
      columns = columns_.insert(columns, {.rows = rows});
    }
    const std::int64_t first = region.begin % region.pitch;
    columns->stretches.add(first, first + region.width);
    if (!columns->stretches.contains(0, region.pitch)) {
      return;
    }
    const std::int64_t base = region.begin / region.pitch * region.pitch;
    region = {.begin = base, .width = region.rows * region.pitch, .pitch = 0, .rows = 1};
  }
  whole_.add(region.begin, region.end());
}

bool Written::covers(const Region& region) const {
  if (whole_.contains(region.begin, region.end())) {
    return true;
  }
  if (region.contiguous()) {
    return false;
  }
  const std::array<std::int64_t, 3> rows = rows_of(region);
  const auto columns = std::ranges::lower_bound(columns_, rows, {}, &Columns::rows);
  const std::int64_t first = region.begin % region.pitch;
  return columns != columns_.end() && columns->rows == rows &&
         columns->stretches.contains(first, first + region.width);
}

}  // namespace tessera
