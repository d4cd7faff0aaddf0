#include "tessera/backend/cuda/lt_gemms.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <cublasLt.h>

#include "tessera/backend/cuda/algorithm_cache.h"
#include "tessera/backend/cuda/check.h"
#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

constexpr std::uintptr_t kLtAlignment = 256;    // what cuBLASLt asks for
constexpr std::uintptr_t kBestAlignment = 256;  // more gains nothing

using LtHandle = Handle<cublasLtHandle_t, cublasLtDestroy>;
using Description = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;
using Event = Handle<cudaEvent_t, cudaEventDestroy>;

// Of those that cuBLASLt proposes, best first by its own estimate.
constexpr int kTimedAlgorithms = 8;
constexpr int kTimedRounds = 3;

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
  bool tf32 = false;
  Scales scales = Scales::kNone;
  std::uint32_t alignment_a = 0;
  std::uint32_t alignment_b = 0;
  std::uint32_t alignment_c = 0;

  friend bool operator==(const Key&, const Key&) = default;

  // As AlgorithmCache knows it.
  std::string text() const {
    const auto matrix =
        [](DType dtype, bool transposed, std::int64_t pitch, std::uint32_t aligned) {
          return format("{}{}/{}/{}", name(dtype), transposed ? "^T" : "", pitch, aligned);
        };
    return format("{}x{}x{} {} {} {}{}{}{}",
                  gemm.m,
                  gemm.n,
                  gemm.k,
                  matrix(a, gemm.transpose_a, gemm.pitch_a, alignment_a),
                  matrix(b, gemm.transpose_b, gemm.pitch_b, alignment_b),
                  matrix(gemm.output, false, gemm.pitch_c, alignment_c),
                  gemm.accumulate ? " accumulate" : "",
                  tf32 ? " tf32" : "",
                  scales == Scales::kNone  ? ""
                  : scales == Scales::kOne ? " one scale"
                                           : " row scales");
  }
};

cublasLtHandle_t create_handle() {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "cublasLtCreate()");
  return handle;
}

cublasLtMatmulDesc_t create_description(bool tf32) {
  cublasLtMatmulDesc_t description = nullptr;
  check(cublasLtMatmulDescCreate(
            &description, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
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

cudaEvent_t create_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate()");
  return event;
}

// An algorithm's settings, which the library's version understands, as text and back.
std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm.data) {
    text += format("{:016x}", word);
  }
  return text;
}

std::optional<cublasLtMatmulAlgo_t> algorithm_of(const std::string& text) {
  constexpr std::size_t kDigits = 16;
  cublasLtMatmulAlgo_t algorithm = {};
  if (text.size() != std::size(algorithm.data) * kDigits) {
    return std::nullopt;
  }
  const char* place = text.data();
  for (std::uint64_t& word : algorithm.data) {
    const auto [end, error] = std::from_chars(place, place + kDigits, word, 16);
    if (error != std::errc() || end != place + kDigits) {
      return std::nullopt;
    }
    place = end;
  }
  return algorithm;
}

// Where a product runs.
struct Place {
  cublasLtHandle_t handle;
  cudaStream_t stream;
  std::span<std::byte> workspace;
};

// One product's shape as cuBLASLt sees it: the transposed product C' = B' A'.
class Product {
 public:
  // `operands` decide by their alignment, which the key has.
  Product(const Key& key, const Float8Operands& operands)
      : key_(key),
        description_(create_description(key.tf32)),
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
  }

  const Key& key() const { return key_; }

  // At most `most` algorithms, best first by the library's estimate. Errors: kUnsupported where it
  // has none.
  std::vector<cublasLtMatmulAlgo_t> propose(cublasLtHandle_t handle, int most) const {
    const Preference preference(create_preference());
    // What is left when the workspace begins at its alignment.
    prefer(preference,
           CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
           static_cast<std::uint64_t>(kGemmWorkspaceBytes) - kLtAlignment);
    // Parts of a sum are added in f32 and in one order.
    prefer(preference,
           CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key_.alignment_b);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key_.alignment_a);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key_.alignment_c);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key_.alignment_c);
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle,
                                                                 description_.get(),
                                                                 b_.get(),
                                                                 a_.get(),
                                                                 c_.get(),
                                                                 c_.get(),
                                                                 preference.get(),
                                                                 most,
                                                                 found.data(),
                                                                 &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) {
      check(status, "cublasLtMatmulAlgoGetHeuristic()");
    }
    std::vector<cublasLtMatmulAlgo_t> proposed;
    for (const cublasLtMatmulHeuristicResult_t& result :
         std::span(found).first(static_cast<std::size_t>(count))) {
      if (result.state == CUBLAS_STATUS_SUCCESS) {
        proposed.push_back(result.algo);
      }
    }
    TESSERA_REQUIRE(!proposed.empty(),
                    ErrorCode::kUnsupported,
                    "cuBLASLt has no algorithm for a product of {} x {} x {} ({} into {}): choose "
                    "sizes that are multiples of 8",
                    key_.gemm.m,
                    key_.gemm.n,
                    key_.gemm.k,
                    name(key_.a),
                    name(key_.gemm.output));
    return proposed;
  }

  // Whether the library takes an algorithm that another process chose.
  bool takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(
        handle, description_.get(), b_.get(), a_.get(), c_.get(), c_.get(), &algorithm, &result);
    return status == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= static_cast<std::size_t>(kGemmWorkspaceBytes) - kLtAlignment;
  }

  // The fastest of several, by the least of some rounds each, all in turn; what the last one made
  // is in C. Of a product that is not added to what C holds.
  cublasLtMatmulAlgo_t fastest(const Place& place,
                               const Float8Operands& operands,
                               const std::vector<cublasLtMatmulAlgo_t>& proposed) const {
    std::vector<float> least(proposed.size(), std::numeric_limits<float>::infinity());
    for (int round = 0; round <= kTimedRounds; ++round) {
      for (std::size_t i = 0; i < proposed.size(); ++i) {
        const float took = milliseconds(place, operands, proposed[i]);
        if (round > 0) {  // the first loads kernels
          least[i] = std::min(least[i], took);
        }
      }
    }
    return proposed[static_cast<std::size_t>(std::ranges::min_element(least) - least.begin())];
  }

  void choose(const cublasLtMatmulAlgo_t& algorithm) { algorithm_ = algorithm; }

  const cublasLtMatmulAlgo_t& algorithm() const { return algorithm_; }

  void run(const Place& place, const Float8Operands& operands) const {
    if (key_.scales != Scales::kNone) {
      set_scales(operands);
    }
    check(launch(place, operands, algorithm_), "cublasLtMatmul()");
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

  cublasStatus_t launch(const Place& place,
                        const Float8Operands& operands,
                        const cublasLtMatmulAlgo_t& algorithm) const {
    const float alpha = 1.0F;
    const float beta = key_.gemm.accumulate ? 1.0F : 0.0F;
    return cublasLtMatmul(place.handle,
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
                          &algorithm,
                          place.workspace.data(),
                          place.workspace.size(),
                          place.stream);
  }

  // Infinite for one that the library proposes and then does not take.
  float milliseconds(const Place& place,
                     const Float8Operands& operands,
                     const cublasLtMatmulAlgo_t& algorithm) const {
    const Event begin(create_event());
    const Event end(create_event());
    check(cudaEventRecord(begin.get(), place.stream), "cudaEventRecord()");
    const cublasStatus_t status = launch(place, operands, algorithm);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
      return std::numeric_limits<float>::infinity();
    }
    check(status, "cublasLtMatmul()");
    check(cudaEventRecord(end.get(), place.stream), "cudaEventRecord()");
    check(cudaEventSynchronize(end.get()), "cudaEventSynchronize()");
    float took = 0.0F;
    check(cudaEventElapsedTime(&took, begin.get(), end.get()), "cudaEventElapsedTime()");
    return took;
  }

  Key key_;
  Description description_;
  Layout a_;
  Layout b_;
  Layout c_;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

// What algorithms hold for: those of one version of the library run on one kind of device.
std::string machine() {
  int ordinal = 0;
  check(cudaGetDevice(&ordinal), "cudaGetDevice()");
  cudaDeviceProp device = {};
  check(cudaGetDeviceProperties(&device, ordinal), "cudaGetDeviceProperties()");
  return format("{}, {} multiprocessors, cuBLASLt {}",
                device.name,
                device.multiProcessorCount,
                cublasLtGetVersion());
}

class LtGemms final : public Gemms {
 public:
  LtGemms(bool tf32, const std::vector<std::filesystem::path>& files)
      : tf32_(tf32), handle_(create_handle()) {
    if (!files.empty()) {
      cache_.emplace(machine(), files);
    }
  }

  void run(CUstream_st* stream,
           const Gemm& gemm,
           const GemmOperands& operands,
           std::span<std::byte> workspace) override {
    run(stream,
        {.gemm = gemm,
         .a = gemm.input,
         .b = gemm.input,
         .tf32 = tf32_ && gemm.input == DType::kF32},
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
    TESSERA_CHECK(std::align(kLtAlignment,
                             static_cast<std::size_t>(kGemmWorkspaceBytes) - kLtAlignment,
                             start,
                             space) != nullptr,
                  "{} bytes of workspace for a product, expected {}",
                  workspace.size(),
                  kGemmWorkspaceBytes);
    key.alignment_a = alignment_of(operands.a);
    key.alignment_b = alignment_of(operands.b);
    key.alignment_c = alignment_of(operands.c);
    const Place place = {.handle = handle_.get(),
                         .stream = stream,
                         .workspace = {static_cast<std::byte*>(start), space}};
    product(key, operands, place).run(place, operands);
  }

  // A step has some tens of shapes.
  const Product& product(const Key& key, const Float8Operands& operands, const Place& place) {
    const auto known = std::ranges::find_if(
        products_, [&](const std::unique_ptr<Product>& made) { return made->key() == key; });
    if (known != products_.end()) {
      return **known;
    }
    auto made = std::make_unique<Product>(key, operands);
    made->choose(algorithm(*made, operands, place));
    products_.push_back(std::move(made));
    return *products_.back();
  }

  cublasLtMatmulAlgo_t algorithm(const Product& product,
                                 const Float8Operands& operands,
                                 const Place& place) {
    if (!cache_) {
      return product.propose(place.handle, 1)[0];
    }
    if (product.key().gemm.accumulate) {
      return algorithm_of_sum(product, place);
    }
    const std::string text = product.key().text();
    if (const std::optional<std::string> kept = cache_->use(text)) {
      const auto algorithm = algorithm_of(*kept);
      if (algorithm && product.takes(place.handle, *algorithm)) {
        return *algorithm;
      }
    }
    const cublasLtMatmulAlgo_t fastest =
        product.fastest(place, operands, product.propose(place.handle, kTimedAlgorithms));
    cache_->add(text, text_of(fastest));
    return fastest;
  }

  // To time a product that is added to what C holds would change that: it takes the algorithm of
  // the same product without, which the first microbatch has run.
  cublasLtMatmulAlgo_t algorithm_of_sum(const Product& product, const Place& place) const {
    Key key = product.key();
    key.gemm.accumulate = false;
    const auto twin = std::ranges::find_if(
        products_, [&](const std::unique_ptr<Product>& made) { return made->key() == key; });
    return twin != products_.end() && product.takes(place.handle, (*twin)->algorithm())
               ? (*twin)->algorithm()
               : product.propose(place.handle, 1)[0];
  }

  bool tf32_;
  LtHandle handle_;
  std::optional<AlgorithmCache> cache_;  // none: nothing is timed
  std::vector<std::unique_ptr<Product>> products_;
};

}  // namespace

std::unique_ptr<Gemms> make_lt_gemms(bool tf32,
                                     const std::vector<std::filesystem::path>& algorithm_files) {
  return std::make_unique<LtGemms>(tf32, algorithm_files);
}

}  // namespace tessera::cuda
