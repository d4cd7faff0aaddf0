#include "tessera/data/permutation.h"

#include <array>
#include <bit>
#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/base/random.h"

namespace tessera {
namespace {

// Half-rounds, each of which changes one half by a function of the other. Four already make a
// pseudo-random permutation of large domains (Luby & Rackoff 1988); small ones need more to mix.
constexpr std::uint32_t kNumRounds = 12;

std::uint64_t low_mask(int bits) {
  return (std::uint64_t{1} << static_cast<unsigned>(bits)) - 1;
}

std::uint64_t round_function(std::uint64_t key, std::uint64_t half, std::uint32_t round) {
  const auto words = philox(
      key, {static_cast<std::uint32_t>(half), static_cast<std::uint32_t>(half >> 32U), round, 0});
  return words[0] | (static_cast<std::uint64_t>(words[1]) << 32U);
}

}  // namespace

Permutation::Permutation(std::uint64_t key, std::int64_t size)
    : key_(key), size_(static_cast<std::uint64_t>(size)), low_bits_(0), high_bits_(0) {
  TESSERA_REQUIRE(size >= 1,
                  ErrorCode::kInvalidArgument,
                  "a permutation of {} elements: expected at least 1",
                  size);
  const auto bits = static_cast<int>(std::bit_width(size_ - 1));
  high_bits_ = bits / 2;
  low_bits_ = bits - high_bits_;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  auto value = static_cast<std::uint64_t>(index);
  do {
    value = permute_bits(value);
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

std::uint64_t Permutation::permute_bits(std::uint64_t value) const {
  std::uint64_t low = value & low_mask(low_bits_);
  std::uint64_t high = value >> static_cast<unsigned>(low_bits_);
  for (std::uint32_t round = 0; round < kNumRounds; round += 2) {
    low ^= round_function(key_, high, round) & low_mask(low_bits_);
    high ^= round_function(key_, low, round + 1) & low_mask(high_bits_);
  }
  return (high << static_cast<unsigned>(low_bits_)) | low;
}

}  // namespace tessera
