#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

// Where a rank, a stage or another number that is not negative stands in a vector.
constexpr std::size_t as_index(std::int64_t number) {
  return static_cast<std::size_t>(number);
}

}  // namespace tessera
