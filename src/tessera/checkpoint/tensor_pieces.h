#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/mesh/tensor_box.h"

namespace tessera {

// Where the elements of a global tensor lie in the files of an open checkpoint.

// A slice and its bytes.
struct TensorPiece {
  TensorBox box;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t first = 0;  // its elements lie within [first, last) of the whole
  std::int64_t last = 0;
  std::size_t file = 0;             // index of the file
  const std::byte* data = nullptr;  // of element `begin`
};

// Looks a slice of `tensor` up in files[file]. Errors: kInvalidData where the file has it with
// another type, or has no such tensor.
TensorPiece locate_slice(const ManifestTensor& tensor,
                         const ManifestSlice& slice,
                         std::span<const SafetensorsFile> files,
                         std::size_t file);

// Takes a piece, the stretch's first byte in it and in the read, and the stretch's bytes.
using PieceBody = std::function<void(const TensorPiece&, std::int64_t, std::int64_t, std::int64_t)>;

// Calls body() for the stretches that make up the `num_bytes` bytes of `tensor` from element
// `first` on. Errors: kInvalidArgument for elements that the tensor does not have.
void for_each_stretch(const ManifestTensor& tensor,
                      std::span<const TensorPiece> pieces,
                      std::int64_t first,
                      std::int64_t num_bytes,
                      const PieceBody& body);

}  // namespace tessera
