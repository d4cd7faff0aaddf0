// What parse_manifest() checks beyond syntax, and how parts become one manifest.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/checked.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/ir/dtype.h"
#include "tessera/mesh/tensor_box.h"

namespace tessera {
namespace {

// Elements of a shape; nullopt for a negative size or more than 63 bits.
std::optional<std::int64_t> num_elements(std::span<const std::int64_t> shape) {
  return tensor_size_bytes(DType::kU8, shape);
}

// "tensor 'w' (moment1), slice 'moment1/w' of optimizer-00001-of-00001.safetensors"
std::string place(const ManifestTensor& tensor, const ManifestSlice& slice) {
  return format(
      "tensor {}, slice '{}' of {}", quote(tensor.name, tensor.role), slice.key, slice.file);
}

void verify_slice(const ManifestTensor& tensor, const ManifestSlice& slice) {
  const TensorSlice& part = slice.part;
  const std::size_t dims = tensor.shape.size();
  TESSERA_REQUIRE(part.offset.size() == dims && part.extent.size() == dims,
                  ErrorCode::kInvalidData,
                  "{}: offset {} and extent {} of a tensor of shape {}",
                  place(tensor, slice),
                  format_shape(part.offset),
                  format_shape(part.extent),
                  format_shape(tensor.shape));
  bool inside = true;
  for (std::size_t d = 0; d < dims; ++d) {
    // The end may reach over the tensor's: padding.
    inside = inside && part.offset[d] >= 0 && part.extent[d] >= 0 &&
             part.offset[d] <= tensor.shape[d] &&
             checked_sum(part.offset[d], part.extent[d]).has_value();
  }
  const std::optional<std::int64_t> box = num_elements(part.extent);
  TESSERA_REQUIRE(inside && box,
                  ErrorCode::kInvalidData,
                  "{}: a box of {} at {}, expected it inside {}",
                  place(tensor, slice),
                  format_shape(part.extent),
                  format_shape(part.offset),
                  format_shape(tensor.shape));
  TESSERA_REQUIRE(
      part.begin >= 0 && part.count >= 0 && part.begin <= *box && part.count <= *box - part.begin,
      ErrorCode::kInvalidData,
      "{}: {} elements from element {} of a box of {}",
      place(tensor, slice),
      part.count,
      part.begin,
      *box);
}

// The slices of one box hold each of its elements once. `slices` are in the order of `begin`.
void verify_ranges(const ManifestTensor& tensor, std::span<const ManifestSlice* const> slices) {
  std::int64_t covered = 0;
  for (const ManifestSlice* slice : slices) {
    TESSERA_REQUIRE(slice->part.begin == covered,
                    ErrorCode::kInvalidData,
                    "{}: begins at element {} of its box, expected {}: slices {}",
                    place(tensor, *slice),
                    slice->part.begin,
                    covered,
                    slice->part.begin < covered ? "overlap" : "leave a hole");
    covered += slice->part.count;
  }
  const std::int64_t box = num_elements(slices.back()->part.extent).value_or(0);
  TESSERA_REQUIRE(covered == box,
                  ErrorCode::kInvalidData,
                  "{}: the slices of its box end at element {}, expected {}",
                  place(tensor, *slices.back()),
                  covered,
                  box);
}

bool overlap(const TensorSlice& a, const TensorSlice& b) {
  for (std::size_t d = 0; d < a.offset.size(); ++d) {
    if (a.offset[d] + a.extent[d] <= b.offset[d] || b.offset[d] + b.extent[d] <= a.offset[d]) {
      return false;
    }
  }
  return true;
}

void verify_coverage(const ManifestTensor& tensor, std::int64_t elements) {
  const auto box_of = [](const ManifestSlice* slice) {
    return std::tie(slice->part.offset, slice->part.extent);
  };
  std::vector<const ManifestSlice*> slices;
  for (const ManifestSlice& slice : tensor.slices) {
    slices.push_back(&slice);
  }
  std::ranges::sort(slices, {}, [&](const ManifestSlice* slice) {
    return std::tie(slice->part.offset, slice->part.extent, slice->part.begin);
  });
  std::int64_t covered = 0;
  std::vector<const ManifestSlice*> boxes;
  for (std::size_t first = 0; first < slices.size();) {
    std::size_t last = first + 1;
    while (last < slices.size() && box_of(slices[last]) == box_of(slices[first])) {
      ++last;
    }
    verify_ranges(tensor, std::span(slices).subspan(first, last - first));
    const TensorSlice& part = slices[first]->part;
    covered += TensorBox(tensor.shape, part.offset, part.extent).num_valid_elements();
    for (const ManifestSlice* other : boxes) {
      TESSERA_REQUIRE(!overlap(part, other->part),
                      ErrorCode::kInvalidData,
                      "{}: its box of {} at {} overlaps that of {} at {}",
                      place(tensor, *slices[first]),
                      format_shape(part.extent),
                      format_shape(part.offset),
                      format_shape(other->part.extent),
                      format_shape(other->part.offset));
    }
    boxes.push_back(slices[first]);
    first = last;
  }
  TESSERA_REQUIRE(covered == elements,
                  ErrorCode::kInvalidData,
                  "tensor {}: its slices hold {} elements, expected the {} of {}",
                  quote(tensor.name, tensor.role),
                  covered,
                  elements,
                  format_shape(tensor.shape));
}

}  // namespace

TensorSlice whole_slice(const std::vector<std::int64_t>& shape) {
  return {.offset = std::vector<std::int64_t>(shape.size(), 0),
          .extent = shape,
          .begin = 0,
          .count = num_elements(shape).value_or(0)};
}

bool is_box(const TensorSlice& slice) {
  return slice.begin == 0 && slice.count == num_elements(slice.extent);
}

std::string quote(std::string_view tensor, TensorRole role) {
  return role == TensorRole::kParameter ? format("'{}'", tensor)
                                        : format("'{}' ({})", tensor, to_string(role));
}

void verify(const Manifest& manifest, ManifestScope scope) {
  std::set<std::string_view> files;
  for (const ManifestFile& file : manifest.files) {
    TESSERA_REQUIRE(files.insert(file.name).second,
                    ErrorCode::kInvalidData,
                    "file {} is listed twice",
                    file.name);
  }
  std::set<std::pair<std::string_view, TensorRole>> tensors;
  for (const ManifestTensor& tensor : manifest.tensors) {
    TESSERA_REQUIRE(tensors.emplace(tensor.name, tensor.role).second,
                    ErrorCode::kInvalidData,
                    "tensor {} is listed twice",
                    quote(tensor.name, tensor.role));
    TESSERA_REQUIRE(tensor_size_bytes(tensor.dtype, tensor.shape),
                    ErrorCode::kInvalidData,
                    "tensor {}: {} is no shape, or has more than 2^63 bytes",
                    quote(tensor.name, tensor.role),
                    format_shape(tensor.shape));
    for (const ManifestSlice& slice : tensor.slices) {
      verify_slice(tensor, slice);
      TESSERA_REQUIRE(files.contains(slice.file),
                      ErrorCode::kInvalidData,
                      "tensor {} lies in {}, which the manifest does not list",
                      quote(tensor.name, tensor.role),
                      slice.file);
    }
    if (scope == ManifestScope::kCheckpoint) {
      verify_coverage(tensor, num_elements(tensor.shape).value_or(0));
    }
  }
  const std::int64_t expected = manifest.meta.num_tensors;
  TESSERA_REQUIRE(
      scope == ManifestScope::kPart || expected == 0 || expected == std::ssize(manifest.tensors),
      ErrorCode::kInvalidData,
      "found {} tensors, expected the {} of the whole checkpoint",
      manifest.tensors.size(),
      expected);
}

Manifest merge(std::span<const Manifest> parts) {
  Manifest merged;
  std::map<std::pair<std::string_view, TensorRole>, std::size_t> index;
  for (const Manifest& part : parts) {
    if (&part == parts.data()) {
      merged.meta = part.meta;
    }
    TESSERA_REQUIRE(part.meta == merged.meta,
                    ErrorCode::kInvalidData,
                    "the parts of ranks 0 and {} are of different saves: after steps {} and {}",
                    &part - parts.data(),
                    merged.meta.step,
                    part.meta.step);
    merged.files.insert(merged.files.end(), part.files.begin(), part.files.end());
    for (const ManifestTensor& tensor : part.tensors) {
      const auto [found, is_new] =
          index.try_emplace({tensor.name, tensor.role}, merged.tensors.size());
      if (is_new) {
        merged.tensors.push_back(tensor);
        continue;
      }
      ManifestTensor& known = merged.tensors[found->second];
      TESSERA_REQUIRE(known.dtype == tensor.dtype && known.shape == tensor.shape,
                      ErrorCode::kInvalidData,
                      "tensor {}: rank {} has {}, the ranks before it {}",
                      quote(tensor.name, tensor.role),
                      &part - parts.data(),
                      describe(tensor.dtype, tensor.shape),
                      describe(known.dtype, known.shape));
      known.slices.insert(known.slices.end(), tensor.slices.begin(), tensor.slices.end());
    }
  }
  return merged;
}

}  // namespace tessera
