#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/ir/tensor_type.h"
#include "tessera/ir/view.h"

namespace tessera::conformance {

// A tensor that owns its elements, row-major without gaps.
class HostTensor {
 public:
  // All elements are zero.
  explicit HostTensor(TensorType type);

  const TensorType& type() const { return type_; }

  View view() const;

  std::span<std::byte> bytes() { return bytes_; }

  std::span<const std::byte> bytes() const { return bytes_; }

  // The elements, of exactly this type. Errors: kInternal where the dtype is another one.
  std::span<double> f64();
  std::span<const double> f64() const;
  std::span<std::int32_t> i32();
  std::span<std::int64_t> i64();

  friend bool operator==(const HostTensor&, const HostTensor&) = default;

 private:
  TensorType type_;
  std::vector<std::byte> bytes_;
};

// The type of `type`'s elements in a reference: f64 for every floating dtype, itself otherwise.
TensorType reference_type(TensorType type);

// `tensor` with floating elements as f64; integers stay.
HostTensor widened(const HostTensor& tensor);

// An f64 tensor rounded to `dtype` (f32, bf16 or 8 bits); an integer tensor stays.
HostTensor rounded(const HostTensor& tensor, DType dtype);

// Row-major strides of `type`, in elements.
std::vector<std::int64_t> row_major_strides(const TensorType& type);

// Half `half` (0 or 1) of `tensor` along `dim`, whose bound is even.
HostTensor half_of(const HostTensor& tensor, std::size_t dim, int half);

// The two halves one after the other along `dim`: the inverse of half_of().
HostTensor joined(const HostTensor& first, const HostTensor& second, std::size_t dim);

}  // namespace tessera::conformance
