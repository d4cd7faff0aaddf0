#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// An endless list of draws from weighted choices that needs no memory: draw s is the choice in
// whose part of [0, 2^32) the number (s * A + B) mod 2^32 falls, A being 2^32 over the golden
// ratio, for which such numbers spread most evenly. Each 2^32 draws are exactly in proportion (to
// 2^-32), and so, but for a few, is any stretch of them. Source: Knuth, TAOCP vol. 3, section 6.4,
// on Fibonacci hashing and the three-distance theorem.
class Rotation {
 public:
  // `offset` moves where the list begins. Errors: kInvalidArgument unless there is a weight, each
  // is finite and above 0, and none is below 1e-9 of their sum.
  Rotation(std::span<const double> weights, std::uint64_t offset);

  struct Draw {
    std::size_t choice;
    std::int64_t earlier;  // draws of that choice before this one
  };

  // Precondition: index >= 0. O(log 2^32).
  Draw operator()(std::int64_t index) const;

 private:
  // Draws before `index` that fall below `bound`.
  std::uint64_t num_below(std::uint64_t index, std::uint64_t bound) const;

  std::vector<std::uint64_t> bounds_;  // of each choice's part, the end last
  std::uint64_t offset_;
};

}  // namespace tessera
