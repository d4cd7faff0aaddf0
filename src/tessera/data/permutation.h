#pragma once

#include <cstdint>

namespace tessera {

// A pseudo-random bijection of [0, size) that needs no memory: a Feistel network whose round
// function is Philox, on the next power of two, walked until it falls inside.
// Source: Black & Rogaway 2002, "Ciphers with arbitrary finite domains", method 2.
class Permutation {
 public:
  // Errors: kInvalidArgument if size < 1.
  Permutation(std::uint64_t key, std::int64_t size);

  // Precondition: 0 <= index < size. Fewer than two walks on average.
  std::int64_t operator()(std::int64_t index) const;

 private:
  std::uint64_t permute_bits(std::uint64_t value) const;

  std::uint64_t key_;
  std::uint64_t size_;
  int low_bits_;
  int high_bits_;
};

}  // namespace tessera
