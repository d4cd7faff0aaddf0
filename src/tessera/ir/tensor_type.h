#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/dtype.h"
#include "tessera/ir/ids.h"

namespace tessera {

// One dimension of a tensor: a name that plans map to mesh axes, a bound, and, where the size is
// known only at run time, the i32 value that counts the elements in use.
struct Dim {
  std::string name;
  std::int64_t bound = 0;
  std::optional<ValueId> count = std::nullopt;

  friend bool operator==(const Dim&, const Dim&) = default;
};

// What is known of a value before the run. No dims: a scalar.
struct TensorType {
  DType dtype = DType::kF32;
  std::vector<Dim> dims;

  std::size_t num_dims() const { return dims.size(); }

  // Of every dim.
  std::vector<std::int64_t> bounds() const;

  // Product of the bounds; 1 for a scalar. Errors: kOutOfMemory where it has more than 63 bits.
  std::int64_t num_elements() const;

  // Errors: kOutOfMemory where it has more than 63 bits.
  std::int64_t num_bytes() const;

  // Product of the bounds of dims [first, last). Errors: kOutOfMemory where it has more than 63
  // bits.
  std::int64_t extent(std::size_t first, std::size_t last) const;

  friend bool operator==(const TensorType&, const TensorType&) = default;
};

using Types = std::span<const TensorType>;
using TensorTypes = std::vector<TensorType>;

// "f32[batch=4, seq=512]", "i32[tokens=64:%7]" with a count value, "f32[]" for a scalar.
std::string to_string(const TensorType& type);

// The inverse of to_string(TensorType). Errors: kInvalidArgument quoting the text.
TensorType parse_tensor_type(std::string_view text);

inline void parse_text(std::string_view text, TensorType& type) {
  type = parse_tensor_type(text);
}

}  // namespace tessera
