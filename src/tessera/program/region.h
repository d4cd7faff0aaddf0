#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/program/program.h"
#include "tessera/program/stretches.h"

namespace tessera {

// The bytes of a tensor inside a slot of a buffer: `rows` stretches of `width` bytes, `pitch`
// apart.
struct Region {
  std::int64_t begin = 0;
  std::int64_t width = 0;
  std::int64_t pitch = 0;  // at least `width`; 0 for a single row
  std::int64_t rows = 1;

  std::int64_t end() const { return begin + (rows - 1) * pitch + width; }

  bool contiguous() const { return rows == 1; }

  friend bool operator==(const Region&, const Region&) = default;
};

// Errors: kInternal unless bounds are positive, the offset is a multiple of the element and not
// negative, and the strides are those of rows of one pitch that do not overlap each other.
Region region_of(const TensorRef& tensor);

// Whether the regions, of one slot of a buffer, share a byte.
bool overlap(const Region& a, const Region& b);

// What was written of one life of a buffer. Column stretches of one set of rows merge into whole
// rows, so that a tensor made by parts can be read as one.
class Written {
 public:
  void add(Region region);

  bool covers(const Region& region) const;

  void clear() {
    whole_.clear();
    columns_.clear();
  }

 private:
  // Of one set of rows: (first row, pitch, rows).
  struct Columns {
    std::array<std::int64_t, 3> rows = {};
    Stretches stretches = {};
  };

  Stretches whole_;
  std::vector<Columns> columns_;  // by rows
};

}  // namespace tessera
