#include "tessera/program/index_set.h"

#include <bit>

namespace tessera {
namespace {

constexpr std::size_t kBits = 64;

std::uint64_t bit(std::size_t index) {
  return std::uint64_t{1} << index % kBits;
}

std::size_t lowest(std::uint64_t word) {
  return static_cast<std::size_t>(std::countr_zero(word));
}

std::size_t highest(std::uint64_t word) {
  return kBits - 1 - static_cast<std::size_t>(std::countl_zero(word));
}

}  // namespace

IndexSet::IndexSet(std::size_t bound) {
  do {
    bound = (bound + kBits - 1) / kBits;
    levels_.emplace_back(bound);
  } while (bound > 1);
}

void IndexSet::insert(std::size_t index) {
  for (std::vector<std::uint64_t>& level : levels_) {
    std::uint64_t& word = level[index / kBits];
    const bool known = word != 0;
    word |= bit(index);
    if (known) {
      return;
    }
    index /= kBits;
  }
}

void IndexSet::erase(std::size_t index) {
  for (std::vector<std::uint64_t>& level : levels_) {
    std::uint64_t& word = level[index / kBits];
    word &= ~bit(index);
    if (word != 0) {
      return;
    }
    index /= kBits;
  }
}

std::optional<std::size_t> IndexSet::before(std::size_t index) const {
  for (std::size_t level = 0; level < levels_.size(); ++level, index /= kBits) {
    const std::uint64_t word = levels_[level][index / kBits] & (bit(index) - 1);
    if (word != 0) {
      std::size_t found = index / kBits * kBits + highest(word);
      while (level-- > 0) {
        found = found * kBits + highest(levels_[level][found]);
      }
      return found;
    }
  }
  return std::nullopt;
}

std::optional<std::size_t> IndexSet::after(std::size_t index) const {
  for (std::size_t level = 0; level < levels_.size(); ++level, index /= kBits) {
    const std::uint64_t word = levels_[level][index / kBits] & ~(bit(index) | (bit(index) - 1));
    if (word != 0) {
      std::size_t found = index / kBits * kBits + lowest(word);
      while (level-- > 0) {
        found = found * kBits + lowest(levels_[level][found]);
      }
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace tessera
