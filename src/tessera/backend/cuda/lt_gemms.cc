#include "tessera/backend/cuda/lt_gemms.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include <cublasLt.h>

#include "tessera/backend/cuda/check.h"
#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

constexpr std::uintptr_t kWorkspaceAlignment = 256;  // what cuBLASLt asks for
constexpr std::uintptr_t kBestAlignment = 256;       // more gains nothing

using LtHandle = Handle<cublasLtHandle_t, cublasLtDestroy>;
using Description = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kF8E5M2:
      return CUDA_R_8F_E5M2;
    case DType::kF64:
    case DType::kF16:
    case DType::kI32:
    case DType::kI64:
    case DType::kU8:
      break;
  }
  fail(ErrorCode::kUnsupported,
       "matrix products of {} on a CUDA device: expected f32, bf16 or 8-bit floats",
       name(dtype));
}

// The largest power of two, up to kBestAlignment, that divides an address.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | kBestAlignment;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

// Products of 8-bit floats have scales.
enum class Scales { kNone, kOne, kByRow };

// What decides about the algorithm.
struct Key {
  Gemm gemm;
  DType a = DType::kF32;
  DType b = DType::kF32;
  Scales scales = Scales::kNone;
  std::uint32_t alignment_a = 0;
  std::uint32_t alignment_b = 0;
  std::uint32_t alignment_c = 0;

  friend bool operator==(const Key&, const Key&) = default;
};

cublasLtHandle_t create_handle() {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "cublasLtCreate()");
  return handle;
}

cublasLtMatmulDesc_t create_description() {
  cublasLtMatmulDesc_t description = nullptr;
  check(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate()");
  return description;
}

// cuBLASLt's matrices lie column by column: a row-major one of rows x columns is one of columns x
// rows to it.
cublasLtMatrixLayout_t create_layout(DType dtype,
                                     std::int64_t rows,
                                     std::int64_t columns,
                                     std::int64_t pitch) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout,
                                   data_type(dtype),
                                   static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows),
                                   pitch),
        "cublasLtMatrixLayoutCreate()");
  return layout;
}

cublasLtMatmulPreference_t create_preference() {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate()");
  return preference;
}

// One product's shape as cuBLASLt sees it: the transposed product C' = B' A'.
class Product {
 public:
  // `operands` decide by their alignment, which the key has.
  Product(cublasLtHandle_t handle, const Key& key, const Float8Operands& operands)
      : key_(key),
        description_(create_description()),
        a_(create_layout(key.a,
                         key.gemm.transpose_a ? key.gemm.k : key.gemm.m,
                         key.gemm.transpose_a ? key.gemm.m : key.gemm.k,
                         key.gemm.pitch_a)),
        b_(create_layout(key.b,
                         key.gemm.transpose_b ? key.gemm.n : key.gemm.k,
                         key.gemm.transpose_b ? key.gemm.k : key.gemm.n,
                         key.gemm.pitch_b)),
        c_(create_layout(key.gemm.output, key.gemm.m, key.gemm.n, key.gemm.pitch_c)) {
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(key.gemm.transpose_b));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(key.gemm.transpose_a));
    if (key.scales != Scales::kNone) {
      const cublasLtMatmulMatrixScale_t mode = key.scales == Scales::kByRow
                                                   ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                   : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
      set_scales(operands);
    }
    choose_algorithm(handle);
  }

  const Key& key() const { return key_; }

  void run(cublasLtHandle_t handle,
           cudaStream_t stream,
           const Float8Operands& operands,
           std::span<std::byte> workspace) const {
    if (key_.scales != Scales::kNone) {
      set_scales(operands);
    }
    const float alpha = 1.0F;
    const float beta = key_.gemm.accumulate ? 1.0F : 0.0F;
    check(cublasLtMatmul(handle,
                         description_.get(),
                         &alpha,
                         operands.b,
                         b_.get(),
                         operands.a,
                         a_.get(),
                         &beta,
                         operands.c,
                         c_.get(),
                         operands.c,
                         c_.get(),
                         &algorithm_,
                         workspace.data(),
                         workspace.size(),
                         stream),
          "cublasLtMatmul()");
  }

 private:
  static cublasOperation_t operation(bool transposed) {
    return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) const {
    check(cublasLtMatmulDescSetAttribute(
              description_.get(), attribute, static_cast<const void*>(&value), sizeof value),
          "cublasLtMatmulDescSetAttribute()");
  }

  // Its A is our B.
  void set_scales(const Float8Operands& operands) const {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(operands.inverse_b));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(operands.inverse_a));
  }

  template <class T>
  static void prefer(const Preference& preference,
                     cublasLtMatmulPreferenceAttributes_t attribute,
                     T value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute()");
  }

  void choose_algorithm(cublasLtHandle_t handle) {
    const Preference preference(create_preference());
    // What is left when the workspace begins at its alignment.
    prefer(preference,
           CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
           static_cast<std::uint64_t>(kGemmWorkspaceBytes) - kWorkspaceAlignment);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key_.alignment_b);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key_.alignment_a);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key_.alignment_c);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key_.alignment_c);
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle,
                                                                 description_.get(),
                                                                 b_.get(),
                                                                 a_.get(),
                                                                 c_.get(),
                                                                 c_.get(),
                                                                 preference.get(),
                                                                 1,
                                                                 &found,
                                                                 &count);
    TESSERA_REQUIRE(status != CUBLAS_STATUS_NOT_SUPPORTED && count > 0,
                    ErrorCode::kUnsupported,
                    "cuBLASLt has no algorithm for a product of {} x {} x {} ({} into {}): choose "
                    "sizes that are multiples of 8",
                    key_.gemm.m,
                    key_.gemm.n,
                    key_.gemm.k,
                    name(key_.a),
                    name(key_.gemm.output));
    check(status, "cublasLtMatmulAlgoGetHeuristic()");
    algorithm_ = found.algo;
  }

  Key key_;
  Description description_;
  Layout a_;
  Layout b_;
  Layout c_;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

class LtGemms final : public Gemms {
 public:
  LtGemms() : handle_(create_handle()) {}

  void run(CUstream_st* stream,
           const Gemm& gemm,
           const GemmOperands& operands,
           std::span<std::byte> workspace) override {
    run(stream,
        {.gemm = gemm, .a = gemm.input, .b = gemm.input},
        {.a = operands.a, .b = operands.b, .c = operands.c},
        workspace);
  }

  void run_float8(CUstream_st* stream,
                  const Float8Gemm& gemm,
                  const Float8Operands& operands,
                  std::span<std::byte> workspace) override {
    run(stream,
        {.gemm = gemm.gemm,
         .a = gemm.a,
         .b = gemm.b,
         .scales = gemm.by_row ? Scales::kByRow : Scales::kOne},
        operands,
        workspace);
  }

 private:
  void run(CUstream_st* stream,
           Key key,
           const Float8Operands& operands,
           std::span<std::byte> workspace) {
    void* start = workspace.data();
    std::size_t space = workspace.size();
    TESSERA_CHECK(std::align(kWorkspaceAlignment,
                             static_cast<std::size_t>(kGemmWorkspaceBytes) - kWorkspaceAlignment,
                             start,
                             space) != nullptr,
                  "{} bytes of workspace for a product, expected {}",
                  workspace.size(),
                  kGemmWorkspaceBytes);
    key.alignment_a = alignment_of(operands.a);
    key.alignment_b = alignment_of(operands.b);
    key.alignment_c = alignment_of(operands.c);
    product(key, operands)
        .run(handle_.get(), stream, operands, {static_cast<std::byte*>(start), space});
  }

  // A step has some tens of shapes.
  const Product& product(const Key& key, const Float8Operands& operands) {
    const auto known = std::ranges::find_if(
        products_, [&](const std::unique_ptr<Product>& made) { return made->key() == key; });
    if (known != products_.end()) {
      return **known;
    }
    products_.push_back(std::make_unique<Product>(handle_.get(), key, operands));
    return *products_.back();
  }

  LtHandle handle_;
  std::vector<std::unique_ptr<Product>> products_;
};

}  // namespace

std::unique_ptr<Gemms> make_lt_gemms() {
  return std::make_unique<LtGemms>();
}

}  // namespace tessera::cuda
