#include "tessera/weights/export_window.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/hugging_face/convert_elements.h"
#include "tessera/ir/dtype.h"
#include "tessera/models/hugging_face_weight.h"

namespace tessera {
namespace {

// Of the rows that are made at once. Few, since fresh memory can cost as much as the disk.
constexpr std::int64_t kWindowBytes = std::int64_t{4} << 20U;

// (rows, columns) to `out` of (columns, rows), in tiles that fit the caches.
void transpose(std::span<const std::byte> from,
               std::int64_t columns,
               std::int64_t rows,
               std::size_t size,
               std::span<std::byte> out) {
  constexpr std::int64_t kTile = 64;
  for (std::int64_t tile = 0; tile < rows; tile += kTile) {
    for (std::int64_t column = 0; column < columns; ++column) {
      for (std::int64_t row = tile; row < std::min(tile + kTile, rows); ++row) {
        std::memcpy(out.data() + static_cast<std::size_t>(column * rows + row) * size,
                    from.data() + static_cast<std::size_t>(row * columns + column) * size,
                    size);
      }
    }
  }
}

// That no number became an infinity in `halves`.
void require_held(const ExportedWeight& weight,
                  std::span<const std::byte> elements,
                  std::span<const std::byte> halves) {
  constexpr float kLargest = 65504;
  const std::size_t size = size_bytes(weight.dtype);
  for (std::size_t i = 0; i < elements.size() / size; ++i) {
    Float16 half;
    std::memcpy(&half, halves.data() + i * sizeof half, sizeof half);
    if (!std::isinf(to_float(half))) {
      continue;
    }
    float value = 0;
    convert_elements({.dtype = weight.dtype, .data = elements.data() + i * size},
                     1,
                     {.dtype = DType::kF32,
                      .data = reinterpret_cast<std::byte*>(&value),
                      .stride = sizeof value});
    TESSERA_REQUIRE(std::isinf(value),
                    ErrorCode::kInvalidConfig,
                    "tensor '{}': found {}, and f16 holds up to {}: choose bf16 or f32",
                    weight.form.name,
                    value,
                    kLargest);
  }
}

// By part, the rows of ours that the window is made of.
std::vector<ExportWindow::Rows> parts_of(const ExportWindow& window) {
  const ExportedWeight& weight = *window.weight;
  std::vector<ExportWindow::Rows> parts(weight.form.parts.size());
  if (weight.has_our_rows()) {
    parts[0] = {.first = window.row, .end = window.row + window.num_rows};
    return parts;
  }
  for (std::int64_t i = window.row; i < window.row + window.num_rows; ++i) {
    const PartRow ours = our_row(weight.form, i);
    ExportWindow::Rows& part = parts[ours.part];
    part.first = std::min(part.first, ours.row);
    part.end = std::max(part.end, ours.row + 1);
  }
  return parts;
}

}  // namespace

std::vector<ExportWindow> windows_of(const ExportedWeight& weight, std::size_t file) {
  const std::int64_t num_rows = weight.form.rows();
  const std::int64_t rows = weight.form.transposed
                                ? num_rows
                                : std::max<std::int64_t>(kWindowBytes / weight.row_bytes(), 1);
  std::vector<ExportWindow> windows;
  for (std::int64_t row = 0; row < num_rows; row += rows) {
    ExportWindow window{
        .weight = &weight, .file = file, .row = row, .num_rows = std::min(rows, num_rows - row)};
    window.parts = parts_of(window);
    for (ExportWindow::Rows& part : window.parts) {
      part.place = window.num_missing;
      window.num_missing += std::max<std::int64_t>(part.end - part.first, 0) * weight.row_bytes();
    }
    windows.push_back(std::move(window));
  }
  return windows;
}

std::span<const std::byte> ExportRows::make(const ExportWindow& window) {
  const ExportedWeight& weight = *window.weight;
  std::span<const std::byte> rows = in_their_order(window);
  if (weight.form.transposed) {
    transposed_.resize(rows.size());
    transpose(rows,
              weight.form.columns(),
              weight.form.rows(),
              static_cast<std::size_t>(weight.element_bytes()),
              transposed_);
    rows = transposed_;
  }
  return as_written(weight, rows);
}

std::span<const std::byte> ExportRows::in_their_order(const ExportWindow& window) {
  const ExportedWeight& weight = *window.weight;
  if (weight.has_our_rows()) {
    return window.ours;
  }
  const std::int64_t size = weight.row_bytes();
  rows_.resize(static_cast<std::size_t>(window.num_rows * size));
  for (std::int64_t i = 0; i < window.num_rows; ++i) {
    const PartRow ours = our_row(weight.form, window.row + i);
    const ExportWindow::Rows& part = window.parts[ours.part];
    std::copy_n(window.ours.begin() + part.place + (ours.row - part.first) * size,
                size,
                rows_.begin() + i * size);
  }
  return rows_;
}

// Elements of the weight in the type that the file has.
std::span<const std::byte> ExportRows::as_written(const ExportedWeight& weight,
                                                  std::span<const std::byte> elements) {
  const DType from = weight.dtype;
  const DType to = weight.written;
  if (from == to) {
    return elements;
  }
  const std::size_t count = elements.size() / size_bytes(from);
  converted_.resize(count * size_bytes(to));
  convert_elements({.dtype = from, .data = elements.data()},
                   count,
                   {.dtype = to,
                    .data = converted_.data(),
                    .stride = static_cast<std::int64_t>(size_bytes(to))});
  if (to == DType::kF16) {
    require_held(weight, elements, converted_);
  }
  return converted_;
}

}  // namespace tessera
