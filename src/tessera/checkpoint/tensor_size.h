#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tessera/ir/dtype.h"

namespace tessera {

// Bytes of a dense tensor; nullopt for a negative dim or more than 2^63 - 1 bytes.
std::optional<std::int64_t> tensor_size_bytes(DType dtype, std::span<const std::int64_t> shape);

// "(256, 2048)", "()".
std::string format_shape(std::span<const std::int64_t> shape);

// "f32 (256, 2048)".
std::string describe(DType dtype, std::span<const std::int64_t> shape);

}  // namespace tessera
