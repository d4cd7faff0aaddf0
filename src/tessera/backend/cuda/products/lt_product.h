#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cublasLt.h>

#include "tessera/backend/cuda/device/check.h"
#include "tessera/backend/cuda/products/gemm.h"

namespace tessera::cuda {

inline constexpr std::uintptr_t kLtAlignment = 256;  // of the workspace that cuBLASLt asks for

// Products of 8-bit floats have scales.
enum class Scales { kNone, kOne, kByRow };

// What a product without scales does to its sums.
enum class Epilogue { kNone, kBias, kGelu, kGeluWithArgument, kGeluBackward };

// What decides about the algorithm.
struct ProductKey {
  Gemm gemm;
  GemmBatch batch = {};
  DType a = DType::kF32;
  DType b = DType::kF32;
  bool tf32 = false;
  Scales scales = Scales::kNone;
  bool fast_accumulation = false;  // of products with scales
  Epilogue epilogue = Epilogue::kNone;
  std::int64_t pitch_argument = 0;  // of gelu, where its argument is read or written
  std::uint32_t alignment_a = 0;
  std::uint32_t alignment_b = 0;
  std::uint32_t alignment_c = 0;
  std::uint32_t alignment_argument = 0;
  std::uint32_t alignment_bias = 0;

  friend bool operator==(const ProductKey&, const ProductKey&) = default;

  // As AlgorithmCache knows it.
  std::string text() const;
};

// An algorithm's settings, which the library's version understands, as text and back; nothing for a
// text that is none.
std::string text_of(const cublasLtMatmulAlgo_t& algorithm);
std::optional<cublasLtMatmulAlgo_t> algorithm_of(const std::string& text);

// What a product reads and writes.
struct ProductOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;        // with an epilogue that has one
  void* argument = nullptr;          // with one that has gelu's
  const float* inverse_a = nullptr;  // with the key's `scales`
  const float* inverse_b = nullptr;
};

// Where a product runs.
struct ProductPlace {
  cublasLtHandle_t handle;
  cudaStream_t stream;
  std::span<std::byte> workspace;
};

// One product's shape as cuBLASLt sees it: the transposed product C' = B' A'. Errors: kDeviceError.
class Product {
 public:
  // `operands` decide by their alignment, which the key has.
  Product(const ProductKey& key, const ProductOperands& operands);

  const ProductKey& key() const { return key_; }

  // At most `most` algorithms, best first by the library's estimate; none where it does not do
  // this product.
  std::vector<cublasLtMatmulAlgo_t> propose(cublasLtHandle_t handle, int most) const;

  // Whether the library takes an algorithm that was chosen elsewhere.
  bool takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const;

  // The fastest of several, by the least of some rounds each, all in turn; what the last one made
  // is in C. Nothing where the library does none of them after all. Of a product that is not added
  // to what C holds. Errors: as of run(), where none runs for another reason.
  std::optional<cublasLtMatmulAlgo_t> fastest(
      const ProductPlace& place,
      const ProductOperands& operands,
      const std::vector<cublasLtMatmulAlgo_t>& proposed) const;

  void choose(const std::optional<cublasLtMatmulAlgo_t>& algorithm) { algorithm_ = algorithm; }

  // None where nothing that the library has does this product.
  const std::optional<cublasLtMatmulAlgo_t>& algorithm() const { return algorithm_; }

  // By the algorithm, which there is.
  void run(const ProductPlace& place, const ProductOperands& operands) const;

 private:
  using Description = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
  using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) const;
  void set_pointers(const ProductOperands& operands) const;
  cublasStatus_t launch(const ProductPlace& place,
                        const ProductOperands& operands,
                        const cublasLtMatmulAlgo_t& algorithm) const;
  float milliseconds(const ProductPlace& place,
                     const ProductOperands& operands,
                     const cublasLtMatmulAlgo_t& algorithm) const;

  ProductKey key_;
  Description description_;
  Layout a_;
  Layout b_;
  Layout c_;
  std::optional<cublasLtMatmulAlgo_t> algorithm_;
};

}  // namespace tessera::cuda
