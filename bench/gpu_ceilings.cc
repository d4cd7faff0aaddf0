#include "bench/gpu_ceilings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

void check(cudaError_t result) {
  TESSERA_REQUIRE(result == cudaSuccess,
                  ErrorCode::kDeviceError,
                  "{} ({})",
                  cudaGetErrorName(result),
                  cudaGetErrorString(result));
}

void check(cublasStatus_t result) {
  TESSERA_REQUIRE(result == CUBLAS_STATUS_SUCCESS,
                  ErrorCode::kDeviceError,
                  "{}",
                  cublasLtGetStatusString(result));
}

class Memory {
 public:
  explicit Memory(std::size_t bytes) { check(cudaMalloc(&data_, bytes)); }

  ~Memory() { cudaFree(data_); }

  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// The best of several samples of `runs` runs of `body`, by events; seconds of one run.
double best_seconds(int runs, const std::function<void()>& body) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  double best = std::numeric_limits<double>::infinity();
  constexpr int kSamples = 6;  // the first warms up
  for (int sample = 0; sample < kSamples; ++sample) {
    check(cudaEventRecord(begin));
    for (int i = 0; i < runs; ++i) {
      body();
    }
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end));
    best = std::min(best, static_cast<double>(milliseconds) / 1e3 / runs);
  }
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  return best;
}

double copy_bytes_per_s() {
  constexpr std::size_t kBytes = std::size_t{2} << 30U;
  const Memory from(kBytes);
  const Memory to(kBytes);
  check(cudaMemset(from.data(), 1, kBytes));
  return 2.0 * static_cast<double>(kBytes) / best_seconds(10, [&] {
           check(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice));
         });
}

constexpr std::uint64_t kSize = 8192;

// Random bf16 of -2 to 2: the speed depends on the bits that change.
void fill(const Memory& matrix) {
  std::vector<std::uint16_t> values(kSize * kSize);
  std::uint64_t state = 1;
  for (std::uint16_t& value : values) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto random = static_cast<std::uint16_t>(state >> 48U);
    value = static_cast<std::uint16_t>((random & 0x81ffU) | 0x3e00U);
  }
  check(cudaMemcpy(matrix.data(), values.data(), values.size() * 2, cudaMemcpyHostToDevice));
  check(cudaDeviceSynchronize());
}

struct MemoryInfo {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

MemoryInfo memory_info() {
  MemoryInfo info;
  check(cudaMemGetInfo(&info.free_bytes, &info.total_bytes));
  return info;
}

// The fastest of the library's proposals, of which it may refuse some in the end.
double product_flop_per_s() {
  constexpr std::size_t kWorkspace = std::size_t{64} << 20U;
  const Memory a(kSize * kSize * 2);
  const Memory b(kSize * kSize * 2);
  const Memory c(kSize * kSize * 2);
  const Memory workspace(kWorkspace);
  fill(a);
  fill(b);
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t layout = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtCreate(&handle));
  check(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(cublasLtMatmulDescSetAttribute(
      product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
  check(cublasLtMatrixLayoutCreate(
      &layout, CUDA_R_16BF, kSize, kSize, static_cast<std::int64_t>(kSize)));
  check(cublasLtMatmulPreferenceCreate(&preference));
  check(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof kWorkspace));
  std::array<cublasLtMatmulHeuristicResult_t, 16> found = {};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle,
                                       product,
                                       layout,
                                       layout,
                                       layout,
                                       layout,
                                       preference,
                                       static_cast<int>(found.size()),
                                       found.data(),
                                       &count));
  double best = std::numeric_limits<double>::infinity();
  const float one = 1;
  const float zero = 0;
  const auto multiply = [&](const cublasLtMatmulAlgo_t& algorithm) {
    return cublasLtMatmul(handle,
                          product,
                          &one,
                          a.data(),
                          layout,
                          b.data(),
                          layout,
                          &zero,
                          c.data(),
                          layout,
                          c.data(),
                          layout,
                          &algorithm,
                          workspace.data(),
                          kWorkspace,
                          nullptr);
  };
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& proposal = found[static_cast<std::size_t>(i)];
    if (proposal.state == CUBLAS_STATUS_SUCCESS &&
        multiply(proposal.algo) == CUBLAS_STATUS_SUCCESS) {
      best = std::min(best, best_seconds(10, [&] { check(multiply(proposal.algo)); }));
    }
  }
  TESSERA_REQUIRE(std::isfinite(best),
                  ErrorCode::kDeviceError,
                  "cuBLASLt computes no product of matrices of {} x {} in bf16",
                  kSize,
                  kSize);
  check(cublasLtMatmulPreferenceDestroy(preference));
  check(cublasLtMatrixLayoutDestroy(layout));
  check(cublasLtMatmulDescDestroy(product));
  check(cublasLtDestroy(handle));
  const auto size = static_cast<double>(kSize);
  return 2 * size * size * size / best;
}

}  // namespace

Ceilings measure_ceilings() {
  return {.product_flop_per_s = product_flop_per_s(), .copy_bytes_per_s = copy_bytes_per_s()};
}

std::int64_t device_bytes() {
  return static_cast<std::int64_t>(memory_info().total_bytes);
}

std::int64_t used_device_bytes() {
  const MemoryInfo info = memory_info();
  return static_cast<std::int64_t>(info.total_bytes - info.free_bytes);
}

}  // namespace tessera
