#include "tessera/backend/cuda/products/lt_product.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>
#include <system_error>

#include "tessera/backend/cuda/machine/limits.h"
#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;
using Event = Handle<cudaEvent_t, cudaEventDestroy>;

constexpr int kTimedRounds = 3;
// Of a product, one behind the other, after one that is not timed: the host may take longer to
// begin one than the device to do it.
constexpr int kTimedLaunches = 4;

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

cublasLtMatmulDesc_t create_description(bool tf32) {
  cublasLtMatmulDesc_t description = nullptr;
  check(cublasLtMatmulDescCreate(
            &description, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate()");
  return description;
}

// How a row-major matrix lies, and the others of a batch.
struct MatrixPlace {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t pitch;
  std::int64_t count;
  std::int64_t stride;
};

// cuBLASLt's matrices lie column by column: a row-major one of rows x columns is one of columns x
// rows to it.
cublasLtMatrixLayout_t create_layout(DType dtype, const MatrixPlace& place) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout,
                                   data_type(dtype),
                                   static_cast<std::uint64_t>(place.columns),
                                   static_cast<std::uint64_t>(place.rows),
                                   place.pitch),
        "cublasLtMatrixLayoutCreate()");
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
    check(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value),
          "cublasLtMatrixLayoutSetAttribute()");
  };
  if (place.count > 1) {
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(place.count));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, place.stride);
  }
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

cublasOperation_t operation(bool transposed) {
  return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

const char* name(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return "";
    case Epilogue::kBias:
      return " bias";
    case Epilogue::kGelu:
      return " bias gelu";
    case Epilogue::kGeluWithArgument:
      return " bias gelu argument";
    case Epilogue::kGeluBackward:
      return " gelu backward";
  }
  fail(ErrorCode::kInternal, "an epilogue outside of its enumeration");
}

cublasLtEpilogue_t epilogue_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case Epilogue::kGeluWithArgument:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGeluBackward:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  fail(ErrorCode::kInternal, "an epilogue outside of its enumeration");
}

bool has_bias(Epilogue epilogue) {
  return epilogue == Epilogue::kBias || epilogue == Epilogue::kGelu ||
         epilogue == Epilogue::kGeluWithArgument;
}

bool has_argument(Epilogue epilogue) {
  return epilogue == Epilogue::kGeluWithArgument || epilogue == Epilogue::kGeluBackward;
}

// Of what it does not do the library says one or the other.
bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

template <class T>
void prefer(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute()");
}

}  // namespace

std::string ProductKey::text() const {
  const auto matrix = [](DType dtype, bool transposed, std::int64_t pitch, std::uint32_t aligned) {
    return format("{}{}/{}/{}", name(dtype), transposed ? "^T" : "", pitch, aligned);
  };
  return format(
      "{}x{}x{} {} {} {}{}{}{}{}{}{}{}{}",
      gemm.m,
      gemm.n,
      gemm.k,
      matrix(a, gemm.transpose_a, gemm.pitch_a, alignment_a),
      matrix(b, gemm.transpose_b, gemm.pitch_b, alignment_b),
      matrix(gemm.output, false, gemm.pitch_c, alignment_c),
      batch.count > 1
          ? format(
                " batch {}/{}/{}/{}", batch.count, batch.stride_a, batch.stride_b, batch.stride_c)
          : "",
      gemm.accumulate ? " accumulate" : "",
      tf32 ? " tf32" : "",
      scales == Scales::kNone  ? ""
      : scales == Scales::kOne ? " one scale"
                               : " row scales",
      fast_accumulation ? " fast accumulation" : "",
      cuda::name(epilogue),
      has_argument(epilogue) ? format(" {}/{}", pitch_argument, alignment_argument) : "",
      has_bias(epilogue) ? format(" {}", alignment_bias) : "");
}

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

Product::Product(const ProductKey& key, const ProductOperands& operands)
    : key_(key),
      description_(create_description(key.tf32)),
      a_(create_layout(key.a,
                       {.rows = key.gemm.transpose_a ? key.gemm.k : key.gemm.m,
                        .columns = key.gemm.transpose_a ? key.gemm.m : key.gemm.k,
                        .pitch = key.gemm.pitch_a,
                        .count = key.batch.count,
                        .stride = key.batch.stride_a})),
      b_(create_layout(key.b,
                       {.rows = key.gemm.transpose_b ? key.gemm.n : key.gemm.k,
                        .columns = key.gemm.transpose_b ? key.gemm.k : key.gemm.n,
                        .pitch = key.gemm.pitch_b,
                        .count = key.batch.count,
                        .stride = key.batch.stride_b})),
      c_(create_layout(key.gemm.output,
                       {.rows = key.gemm.m,
                        .columns = key.gemm.n,
                        .pitch = key.gemm.pitch_c,
                        .count = key.batch.count,
                        .stride = key.batch.stride_c})) {
  set(CUBLASLT_MATMUL_DESC_TRANSA, operation(key.gemm.transpose_b));
  set(CUBLASLT_MATMUL_DESC_TRANSB, operation(key.gemm.transpose_a));
  if (key.scales != Scales::kNone) {
    const cublasLtMatmulMatrixScale_t mode = key.scales == Scales::kByRow
                                                 ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                 : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(key.fast_accumulation ? 1 : 0));
  }
  if (key.epilogue != Epilogue::kNone) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key.epilogue));
  }
  if (has_bias(key.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(data_type(key.gemm.output)));
  }
  if (has_argument(key.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.pitch_argument);
  }
  set_pointers(operands);
}

std::vector<cublasLtMatmulAlgo_t> Product::propose(cublasLtHandle_t handle, int most) const {
  const Preference preference(create_preference());
  // What is left when the workspace begins at its alignment.
  prefer(preference,
         CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         static_cast<std::uint64_t>(limits().gemm_workspace) - kLtAlignment);
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
  if (!is_refusal(status)) {
    check(status, "cublasLtMatmulAlgoGetHeuristic()");
  }
  std::vector<cublasLtMatmulAlgo_t> proposed;
  for (const cublasLtMatmulHeuristicResult_t& result :
       std::span(found).first(static_cast<std::size_t>(count))) {
    if (result.state == CUBLAS_STATUS_SUCCESS) {
      proposed.push_back(result.algo);
    }
  }
  return proposed;
}

bool Product::takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(
      handle, description_.get(), b_.get(), a_.get(), c_.get(), c_.get(), &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<std::size_t>(limits().gemm_workspace) - kLtAlignment;
}

std::optional<cublasLtMatmulAlgo_t> Product::fastest(
    const ProductPlace& place,
    const ProductOperands& operands,
    const std::vector<cublasLtMatmulAlgo_t>& proposed) const {
  std::vector<float> least(proposed.size(), std::numeric_limits<float>::infinity());
  for (int round = 0; round < kTimedRounds; ++round) {
    for (std::size_t i = 0; i < proposed.size(); ++i) {
      least[i] = std::min(least[i], milliseconds(place, operands, proposed[i]));
    }
  }
  const auto best = std::ranges::min_element(least);
  if (best != least.end() && std::isfinite(*best)) {
    return proposed[static_cast<std::size_t>(best - least.begin())];
  }
  if (best != least.end()) {
    const cublasStatus_t status = launch(place, operands, proposed.front());
    if (!is_refusal(status)) {
      check(status, format("cublasLtMatmul() of {}", key_.text()));
    }
  }
  return std::nullopt;
}

void Product::run(const ProductPlace& place, const ProductOperands& operands) const {
  set_pointers(operands);
  check(launch(place, operands, algorithm_.value()), "cublasLtMatmul()");
}

template <class T>
void Product::set(cublasLtMatmulDescAttributes_t attribute, T value) const {
  check(cublasLtMatmulDescSetAttribute(
            description_.get(), attribute, static_cast<const void*>(&value), sizeof value),
        "cublasLtMatmulDescSetAttribute()");
}

// Of what the description names, not a parameter of the product. Its A is our B.
void Product::set_pointers(const ProductOperands& operands) const {
  if (key_.scales != Scales::kNone) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(operands.inverse_b));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(operands.inverse_a));
  }
  if (has_bias(key_.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  }
  if (has_argument(key_.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.argument);
  }
}

cublasStatus_t Product::launch(const ProductPlace& place,
                               const ProductOperands& operands,
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

// Of kTimedLaunches. Infinite for one that the library proposes and then does not run.
float Product::milliseconds(const ProductPlace& place,
                            const ProductOperands& operands,
                            const cublasLtMatmulAlgo_t& algorithm) const {
  const Event begin(create_event());
  const Event end(create_event());
  for (int i = 0; i <= kTimedLaunches; ++i) {
    if (i == 1) {
      check(cudaEventRecord(begin.get(), place.stream), "cudaEventRecord()");
    }
    const cublasStatus_t status = launch(place, operands, algorithm);
    if (status != CUBLAS_STATUS_SUCCESS) {
      cudaGetLastError();  // which a launch that failed would leave to the next call
      return std::numeric_limits<float>::infinity();
    }
  }
  check(cudaEventRecord(end.get(), place.stream), "cudaEventRecord()");
  check(cudaEventSynchronize(end.get()), "cudaEventSynchronize()");
  float took = 0.0F;
  check(cudaEventElapsedTime(&took, begin.get(), end.get()), "cudaEventElapsedTime()");
  return took;
}

}  // namespace tessera::cuda
