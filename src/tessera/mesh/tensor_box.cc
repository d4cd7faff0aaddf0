#include "tessera/mesh/tensor_box.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// Product of the sizes of dims [first, end).
std::int64_t product(const std::vector<std::int64_t>& sizes, std::size_t first) {
  std::int64_t result = 1;
  for (std::size_t d = first; d < sizes.size(); ++d) {
    result *= sizes[d];
  }
  return result;
}

bool all_at_least_0(const std::vector<std::int64_t>& sizes) {
  return std::ranges::all_of(sizes, [](std::int64_t size) { return size >= 0; });
}

}  // namespace

TensorBox::TensorBox(std::vector<std::int64_t> whole,
                     std::vector<std::int64_t> offset,
                     std::vector<std::int64_t> extent)
    : whole_(std::move(whole)), offset_(std::move(offset)), extent_(std::move(extent)) {
  TESSERA_REQUIRE(
      offset_.size() == whole_.size() && extent_.size() == whole_.size(),
      ErrorCode::kInvalidArgument,
      "a box with {} offsets and {} extents of a tensor of {} dims: expected as many of each",
      offset_.size(),
      extent_.size(),
      whole_.size());
  TESSERA_REQUIRE(all_at_least_0(whole_) && all_at_least_0(offset_) && all_at_least_0(extent_),
                  ErrorCode::kInvalidArgument,
                  "a box with a negative size or offset");
  for (std::size_t d = 0; d < whole_.size(); ++d) {
    if (offset_[d] != 0 || extent_[d] != whole_[d]) {
      cut_dims_ = d + 1;
    }
  }
}

std::int64_t TensorBox::num_valid_elements() const {
  std::int64_t result = 1;
  for (std::size_t d = 0; d < whole_.size(); ++d) {
    result *= valid(d);
  }
  return result;
}

void TensorBox::for_each_stretch(std::int64_t first, std::int64_t count, const Body& body) const {
  // Elements that lie together in the whole: all of the last dim that is cut, and what is inside.
  const std::size_t outer = cut_dims_ == 0 ? 0 : cut_dims_ - 1;
  const std::int64_t block = inside(outer);
  const std::int64_t valid_in_block =
      cut_dims_ == 0 ? block : valid(outer) * product(whole_, outer + 1);
  for (std::int64_t at = first; at < first + count;) {
    const std::int64_t within = at % block;
    const std::int64_t length = std::min(block - within, first + count - at);
    const std::int64_t begin = first_of_block(at / block, outer);
    const std::int64_t kept = std::min(length, valid_in_block - within);
    if (begin >= 0 && kept > 0) {
      body(begin + within, at, kept);
    }
    at += length;
  }
}

std::int64_t TensorBox::lower_bound(std::int64_t whole) const {
  std::int64_t outside = 0;  // the box's index in the dims passed so far
  for (std::size_t d = 0; d < whole_.size(); ++d) {
    const std::int64_t place = d == 0 ? whole / stride(0) : whole / stride(d) % whole_[d];
    const std::int64_t index = place - offset_[d];
    if (index < 0) {
      return outside * inside(d);
    }
    if (index >= extent_[d]) {
      return (outside + 1) * inside(d);
    }
    outside = outside * extent_[d] + index;
  }
  return whole_.empty() ? whole : outside;
}

std::int64_t TensorBox::valid(std::size_t dim) const {
  return std::clamp<std::int64_t>(whole_[dim] - offset_[dim], 0, extent_[dim]);
}

std::int64_t TensorBox::inside(std::size_t dim) const {
  return product(extent_, dim);
}

std::int64_t TensorBox::stride(std::size_t dim) const {
  return product(whole_, dim + 1);
}

// -1 where the block is padding.
std::int64_t TensorBox::first_of_block(std::int64_t block, std::size_t outer) const {
  std::int64_t element = cut_dims_ == 0 ? 0 : offset_[outer] * stride(outer);
  for (std::size_t d = outer; d-- > 0;) {
    const std::int64_t index = block % extent_[d];
    if (index >= valid(d)) {
      return -1;
    }
    element += (offset_[d] + index) * stride(d);
    block /= extent_[d];
  }
  return element;
}

}  // namespace tessera
