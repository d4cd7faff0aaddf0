#include "tessera/checkpoint/tensor_pieces.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/ir/dtype.h"

namespace tessera {

TensorPiece locate_slice(const ManifestTensor& tensor,
                         const ManifestSlice& slice,
                         std::span<const SafetensorsFile> files,
                         std::size_t file) {
  const TensorSlice& part = slice.part;
  const std::vector<std::int64_t> shape = is_box(part) ? part.extent : std::vector{part.count};
  const SafetensorsTensor* found = files[file].find(slice.key);
  TESSERA_REQUIRE(found != nullptr && found->dtype == tensor.dtype && found->shape == shape,
                  ErrorCode::kInvalidData,
                  "tensor '{}' of {}: found {}, expected {}",
                  slice.key,
                  slice.file,
                  found == nullptr ? "none" : describe(found->dtype, found->shape),
                  describe(tensor.dtype, shape));
  TensorPiece piece{.box = {tensor.shape, part.offset, part.extent},
                    .begin = part.begin,
                    .end = part.begin + part.count,
                    .first = 0,
                    .last = std::numeric_limits<std::int64_t>::max(),
                    .file = file,
                    .data = found->data.data()};
  if (part.count > 0) {
    // Padding at an end has no place: the bound stays wide.
    piece.box.for_each_stretch(
        part.begin, 1, [&](std::int64_t whole, auto, auto) { piece.first = whole; });
    piece.box.for_each_stretch(
        piece.end - 1, 1, [&](std::int64_t whole, auto, auto) { piece.last = whole + 1; });
  }
  return piece;
}

void for_each_stretch(const ManifestTensor& tensor,
                      std::span<const TensorPiece> pieces,
                      std::int64_t first,
                      std::int64_t num_bytes,
                      const PieceBody& body) {
  const auto element = static_cast<std::int64_t>(size_bytes(tensor.dtype));
  const std::int64_t elements = tensor_size_bytes(tensor.dtype, tensor.shape).value_or(0) / element;
  const std::int64_t count = num_bytes / element;
  TESSERA_REQUIRE(
      num_bytes % element == 0 && first >= 0 && first <= elements && count <= elements - first,
      ErrorCode::kInvalidArgument,
      "{} bytes from element {} of the {} of {}",
      num_bytes,
      first,
      elements,
      quote(tensor.name, tensor.role));
  for (const TensorPiece& piece : pieces) {
    if (piece.begin == piece.end || piece.last <= first || first + count <= piece.first) {
      continue;
    }
    const std::int64_t begin = std::max(piece.begin, piece.box.lower_bound(first));
    const std::int64_t end = std::min(piece.end, piece.box.lower_bound(first + count));
    piece.box.for_each_stretch(
        begin, end - begin, [&](std::int64_t whole, std::int64_t local, std::int64_t n) {
          body(piece, (local - piece.begin) * element, (whole - first) * element, n * element);
        });
  }
}

}  // namespace tessera
