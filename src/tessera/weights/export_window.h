#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tessera/weights/exported_weight.h"

namespace tessera {

// Rows of a weight that are made at once (of a transposed weight all), and what they are made of.
struct ExportWindow {
  const ExportedWeight* weight = nullptr;
  std::size_t file = 0;
  std::int64_t row = 0;
  std::int64_t num_rows = 0;

  // Of each part, our rows [first, end): side by side in `ours`, from `place` on.
  struct Rows {
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    std::int64_t end = 0;
    std::int64_t place = 0;
  };

  std::vector<Rows> parts = {};
  std::vector<std::byte> ours = {};
  std::int64_t num_passed = 0;  // bytes that went on without standing in `ours`
  std::int64_t num_missing = 0;
};

// The windows of a weight in order, of which all bytes are missing. Borrows it.
std::vector<ExportWindow> windows_of(const ExportedWeight& weight, std::size_t file);

// Makes rows as a file has them, in memory that it keeps from one window to the next.
class ExportRows {
 public:
  // The rows of a window that has all of `ours`; valid until the next call.
  // Errors: kInvalidConfig for a number that f16 cannot hold.
  std::span<const std::byte> make(const ExportWindow& window);

 private:
  // The rows of the window in the order of the file.
  std::span<const std::byte> in_their_order(const ExportWindow& window);
  std::span<const std::byte> as_written(const ExportedWeight& weight,
                                        std::span<const std::byte> elements);

  std::vector<std::byte> rows_;
  std::vector<std::byte> transposed_;
  std::vector<std::byte> converted_;
};

}  // namespace tessera
