#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/backend/cpu/context.h"
#include "tessera/base/half.h"
#include "tessera/base/random.h"
#include "tessera/ir/dtype.h"
#include "tessera/ir/tensor_type.h"
#include "tessera/ir/view.h"

namespace tessera::cpu {

// A tensor for kernel tests: owns its elements, row-major without gaps. Copies are deep.
class TestTensor {
 public:
  TestTensor(DType dtype, std::vector<std::int64_t> sizes)
      : dtype_(dtype), sizes_(std::move(sizes)) {
    bytes_.resize(static_cast<std::size_t>(size()) * size_bytes(dtype));
  }

  // Normal variates of the stream `key`.
  static TestTensor normal(DType dtype, std::vector<std::int64_t> sizes, std::uint64_t key) {
    TestTensor tensor(dtype, std::move(sizes));
    std::vector<float> values(static_cast<std::size_t>(tensor.size()));
    fill_normal(key, 0, {}, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      tensor.set(i, values[i]);
    }
    return tensor;
  }

  static TestTensor of(std::vector<std::int32_t> values) {
    TestTensor tensor(DType::kI32, {static_cast<std::int64_t>(values.size())});
    std::copy(values.begin(), values.end(), tensor.as<std::int32_t>().begin());
    return tensor;
  }

  static TestTensor scalar(float value) {
    TestTensor tensor(DType::kF32, {});
    tensor.set(0, value);
    return tensor;
  }

  std::int64_t size() const {
    std::int64_t product = 1;
    for (const std::int64_t bound : sizes_) {
      product *= bound;
    }
    return product;
  }

  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

  // Element `i` of an f32 or bf16 tensor.
  float get(std::size_t i) const {
    return dtype_ == DType::kF32 ? as<float>()[i] : to_float(as<BFloat16>()[i]);
  }

  void set(std::size_t i, float value) {
    if (dtype_ == DType::kF32) {
      as<float>()[i] = value;
    } else {
      as<BFloat16>()[i] = to_bfloat16(value);
    }
  }

  View view() {
    View view = {.data = bytes_.data(), .dtype = dtype_};
    view.num_dims = static_cast<std::int32_t>(sizes_.size());
    std::int64_t stride = 1;
    for (std::size_t i = sizes_.size(); i > 0; --i) {
      view.sizes[i - 1] = sizes_[i - 1];
      view.strides[i - 1] = stride;
      stride *= sizes_[i - 1];
    }
    return view;
  }

  TensorType type() const {
    TensorType type = {.dtype = dtype_, .dims = {}};
    for (const std::int64_t bound : sizes_) {
      type.dims.push_back({.name = "dim", .bound = bound});
    }
    return type;
  }

  // Bitwise.
  friend bool operator==(const TestTensor&, const TestTensor&) = default;

 private:
  DType dtype_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::byte> bytes_;
};

template <class Attrs>
concept NeedsWorkspace = requires(const Attrs& attrs, Context& context, Types types) {
  workspace_bytes(attrs, context, types);
};

// Runs the op's kernel over views that the caller has laid out, with garbage in the workspace.
template <class Attrs>
void run_kernel(const Attrs& attrs,
                int threads,
                std::span<const View> in,
                std::span<const View> out) {
  Context context(threads);
  std::vector<std::byte> workspace;
  if constexpr (NeedsWorkspace<Attrs>) {
    TensorTypes types;
    for (const View& view : in) {
      TensorType type = {.dtype = view.dtype, .dims = {}};
      for (std::int32_t i = 0; i < view.num_dims; ++i) {
        type.dims.push_back({.name = "dim", .bound = view.sizes[static_cast<std::size_t>(i)]});
      }
      types.push_back(type);
    }
    workspace.assign(static_cast<std::size_t>(workspace_bytes(attrs, context, types)),
                     std::byte{0xff});
  }
  run(attrs, context, Views{.in = in, .out = out, .workspace = workspace});
}

// Runs the op's kernel into fresh results of the given types.
template <class Attrs>
std::vector<TestTensor> run_kernel(const Attrs& attrs,
                                   int threads,
                                   std::vector<TestTensor>& in,
                                   std::vector<TestTensor> results) {
  std::vector<View> operands;
  std::vector<View> out;
  std::transform(in.begin(), in.end(), std::back_inserter(operands), [](TestTensor& tensor) {
    return tensor.view();
  });
  std::transform(results.begin(), results.end(), std::back_inserter(out), [](TestTensor& tensor) {
    return tensor.view();
  });
  run_kernel(attrs, threads, std::span<const View>(operands), std::span<const View>(out));
  return results;
}

}  // namespace tessera::cpu
