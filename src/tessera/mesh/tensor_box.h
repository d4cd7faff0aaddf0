#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tessera {

// A box of a tensor, both row-major: what a rank holds where dims are cut. It may reach over the
// end of a dim; its elements there are padding.
class TensorBox {
 public:
  // Sizes by dim: of the whole tensor, where the box begins in it, and of the box.
  // Errors: kInvalidArgument unless all have as many dims and nothing is negative.
  TensorBox(std::vector<std::int64_t> whole,
            std::vector<std::int64_t> offset,
            std::vector<std::int64_t> extent);

  const std::vector<std::int64_t>& whole() const { return whole_; }

  const std::vector<std::int64_t>& offset() const { return offset_; }

  const std::vector<std::int64_t>& extent() const { return extent_; }

  // Padding included.
  std::int64_t num_elements() const { return inside(0); }

  // Without padding.
  std::int64_t num_valid_elements() const;

  // Calls body(first element in the whole, first in the box, count) for the stretches that make up
  // elements [first, first + count) of the box, both in memory order, without padding.
  using Body = std::function<void(std::int64_t whole, std::int64_t local, std::int64_t count)>;
  void for_each_stretch(std::int64_t first, std::int64_t count, const Body& body) const;

  // The box's first element, in memory order, that lies at element `whole` of the whole or behind
  // it; num_elements() where there is none. It may be padding.
  std::int64_t lower_bound(std::int64_t whole) const;

 private:
  std::int64_t valid(std::size_t dim) const;
  std::int64_t inside(std::size_t dim) const;
  std::int64_t stride(std::size_t dim) const;
  std::int64_t first_of_block(std::int64_t block, std::size_t outer) const;

  std::vector<std::int64_t> whole_;
  std::vector<std::int64_t> offset_;
  std::vector<std::int64_t> extent_;
  std::size_t cut_dims_ = 0;  // the last dim that is cut, plus 1
};

}  // namespace tessera
