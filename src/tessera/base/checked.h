#pragma once

#include <cstdint>
#include <optional>

namespace tessera {

// a * b, or nullopt where it does not fit 64 bits.
inline std::optional<std::int64_t> checked_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::nullopt : std::optional(product);
}

// a + b, or nullopt where it does not fit 64 bits.
inline std::optional<std::int64_t> checked_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::nullopt : std::optional(sum);
}

}  // namespace tessera
