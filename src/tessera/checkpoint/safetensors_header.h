#pragma once

#include <cstddef>

namespace tessera {

// How a safetensors file begins: the length of its header, little-endian, then that header, which
// is JSON. Source: the format's documentation; the limit is that of its reference reader.
inline constexpr std::size_t kSafetensorsLengthBytes = 8;
inline constexpr std::size_t kMaxSafetensorsHeaderBytes = 100'000'000;

}  // namespace tessera
