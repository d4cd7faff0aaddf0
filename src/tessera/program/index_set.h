#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tessera {

// A set of indices below `bound`, as bits; bits of bits find the neighbours of an index in a step
// for each factor of 64 of the bound.
class IndexSet {
 public:
  explicit IndexSet(std::size_t bound);

  void insert(std::size_t index);
  void erase(std::size_t index);

  // The largest of the set that is smaller than `index`, one below the bound.
  std::optional<std::size_t> before(std::size_t index) const;

  // The smallest of the set that is larger.
  std::optional<std::size_t> after(std::size_t index) const;

 private:
  // Each has a bit for each word of the one before, set where the word is not zero; the last one is
  // one word.
  std::vector<std::vector<std::uint64_t>> levels_;
};

}  // namespace tessera
