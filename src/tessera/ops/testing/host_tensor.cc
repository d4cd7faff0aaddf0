#include "tessera/ops/testing/host_tensor.h"

#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/float8.h"
#include "tessera/base/half.h"

namespace tessera::conformance {
namespace {

template <class T>
std::span<T> elements(std::span<std::byte> bytes, const TensorType& type, DType dtype) {
  TESSERA_CHECK(type.dtype == dtype, "{} read as {}", to_string(type), name(dtype));
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

double read_floating(const std::byte* place, DType dtype) {
  if (dtype == DType::kF64) {
    double value = 0;
    std::memcpy(&value, place, sizeof(value));
    return value;
  }
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, place, sizeof(value));
    return static_cast<double>(value);
  }
  if (is_float8(dtype)) {
    const auto bits = static_cast<std::uint8_t>(*place);
    return static_cast<double>(dtype == DType::kF8E4M3 ? to_float(Float8E4M3{bits})
                                                       : to_float(Float8E5M2{bits}));
  }
  TESSERA_CHECK(dtype == DType::kBF16, "no reader of {}", name(dtype));
  BFloat16 value;
  std::memcpy(&value, place, sizeof(value));
  return static_cast<double>(to_float(value));
}

void write_floating(std::byte* place, DType dtype, double value) {
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::kF32) {
    std::memcpy(place, &narrow, sizeof(narrow));
    return;
  }
  if (is_float8(dtype)) {
    *place = static_cast<std::byte>(dtype == DType::kF8E4M3 ? to_float8<Float8E4M3>(narrow).bits
                                                            : to_float8<Float8E5M2>(narrow).bits);
    return;
  }
  TESSERA_CHECK(dtype == DType::kBF16, "no writer of {}", name(dtype));
  const BFloat16 half = to_bfloat16(narrow);
  std::memcpy(place, &half, sizeof(half));
}

// The bytes of one tensor as `count` rows; both halves along a dim take half of every row.
struct Rows {
  std::size_t count;
  std::size_t bytes;
};

Rows rows_of(const TensorType& type, std::size_t dim) {
  const std::int64_t inner = type.extent(dim, type.num_dims());
  return {.count = static_cast<std::size_t>(type.extent(0, dim)),
          .bytes = static_cast<std::size_t>(inner) * size_bytes(type.dtype)};
}

}  // namespace

HostTensor::HostTensor(TensorType type)
    : type_(std::move(type)), bytes_(static_cast<std::size_t>(type_.num_bytes())) {}

View HostTensor::view() const {
  View view;
  // A View borrows without const: the reader of an operand must not write to it.
  view.data = const_cast<std::byte*>(bytes_.data());
  view.dtype = type_.dtype;
  view.num_dims = static_cast<std::int32_t>(type_.num_dims());
  const std::vector<std::int64_t> strides = row_major_strides(type_);
  for (std::size_t i = 0; i < strides.size(); ++i) {
    view.sizes[i] = type_.dims[i].bound;
    view.strides[i] = strides[i];
  }
  return view;
}

std::span<double> HostTensor::f64() {
  return elements<double>(bytes_, type_, DType::kF64);
}

std::span<const double> HostTensor::f64() const {
  return const_cast<HostTensor*>(this)->f64();
}

std::span<std::int32_t> HostTensor::i32() {
  return elements<std::int32_t>(bytes_, type_, DType::kI32);
}

std::span<std::int64_t> HostTensor::i64() {
  return elements<std::int64_t>(bytes_, type_, DType::kI64);
}

TensorType reference_type(TensorType type) {
  type.dtype = is_floating(type.dtype) ? DType::kF64 : type.dtype;
  return type;
}

HostTensor widened(const HostTensor& tensor) {
  const DType dtype = tensor.type().dtype;
  if (!is_floating(dtype)) {
    return tensor;
  }
  HostTensor result(reference_type(tensor.type()));
  const std::size_t step = size_bytes(dtype);
  const std::byte* place = tensor.bytes().data();
  for (double& element : result.f64()) {
    element = read_floating(place, dtype);
    place += step;
  }
  return result;
}

HostTensor rounded(const HostTensor& tensor, DType dtype) {
  if (!is_floating(tensor.type().dtype)) {
    return tensor;
  }
  TensorType type = tensor.type();
  type.dtype = dtype;
  HostTensor result(std::move(type));
  std::byte* place = result.bytes().data();
  for (const double element : tensor.f64()) {
    write_floating(place, dtype, element);
    place += size_bytes(dtype);
  }
  return result;
}

std::vector<std::int64_t> row_major_strides(const TensorType& type) {
  std::vector<std::int64_t> strides(type.num_dims());
  for (std::size_t i = 0; i < strides.size(); ++i) {
    strides[i] = type.extent(i + 1, strides.size());
  }
  return strides;
}

HostTensor half_of(const HostTensor& tensor, std::size_t dim, int half) {
  TensorType type = tensor.type();
  type.dims[dim].bound /= 2;
  HostTensor result(type);
  const Rows rows = rows_of(type, dim);
  for (std::size_t row = 0; row < rows.count; ++row) {
    const std::size_t part = 2 * row + static_cast<std::size_t>(half);
    std::memcpy(result.bytes().data() + row * rows.bytes,
                tensor.bytes().data() + part * rows.bytes,
                rows.bytes);
  }
  return result;
}

HostTensor joined(const HostTensor& first, const HostTensor& second, std::size_t dim) {
  TensorType type = first.type();
  const Rows rows = rows_of(type, dim);
  type.dims[dim].bound *= 2;
  HostTensor result(std::move(type));
  std::byte* place = result.bytes().data();
  for (std::size_t row = 0; row < rows.count; ++row) {
    std::memcpy(place, first.bytes().data() + row * rows.bytes, rows.bytes);
    std::memcpy(place + rows.bytes, second.bytes().data() + row * rows.bytes, rows.bytes);
    place += 2 * rows.bytes;
  }
  return result;
}

}  // namespace tessera::conformance
