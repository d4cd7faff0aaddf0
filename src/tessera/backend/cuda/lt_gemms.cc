#include "tessera/backend/cuda/lt_gemms.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cublasLt.h>

#include "tessera/backend/cuda/algorithm_cache.h"
#include "tessera/backend/cuda/check.h"
#include "tessera/backend/cuda/lt_product.h"
#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

constexpr std::uintptr_t kBestAlignment = 256;  // more gains nothing

using LtHandle = Handle<cublasLtHandle_t, cublasLtDestroy>;

// Of those that cuBLASLt proposes, best first by its own estimate.
constexpr int kTimedAlgorithms = 16;

// The largest power of two, up to kBestAlignment, that divides an address.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | kBestAlignment;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

cublasLtHandle_t create_handle() {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "cublasLtCreate()");
  return handle;
}

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
         .tf32 = tf32_ && gemm.input == DType::kF32,
         .bias = operands.bias != nullptr},
        {.a = operands.a, .b = operands.b, .c = operands.c, .bias = operands.bias},
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
         .scales = gemm.by_row ? Scales::kByRow : Scales::kOne,
         .fast_accumulation = gemm.fast_accumulation},
        {.a = operands.a,
         .b = operands.b,
         .c = operands.c,
         .inverse_a = operands.inverse_a,
         .inverse_b = operands.inverse_b},
        workspace);
  }

  void keep_choices() override {
    if (cache_) {
      cache_->keep();
    }
  }

 private:
  void run(CUstream_st* stream,
           ProductKey key,
           const ProductOperands& operands,
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
    const ProductPlace place = {.handle = handle_.get(),
                                .stream = stream,
                                .workspace = {static_cast<std::byte*>(start), space}};
    product(key, operands, place).run(place, operands);
  }

  // A step has some tens of shapes.
  const Product& product(const ProductKey& key,
                         const ProductOperands& operands,
                         const ProductPlace& place) {
    const auto known = std::ranges::find_if(
        products_, [&](const std::unique_ptr<Product>& made) { return made->key() == key; });
    if (known != products_.end()) {
      return **known;
    }
    // What is recorded has run before, with the same shapes.
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(place.stream, &capture), "cudaStreamIsCapturing()");
    TESSERA_CHECK(capture == cudaStreamCaptureStatusNone,
                  "a product of {} is first met while a graph is recorded",
                  key.text());
    auto made = std::make_unique<Product>(key, operands);
    made->choose(algorithm(*made, operands, place));
    products_.push_back(std::move(made));
    return *products_.back();
  }

  cublasLtMatmulAlgo_t algorithm(const Product& product,
                                 const ProductOperands& operands,
                                 const ProductPlace& place) {
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
  cublasLtMatmulAlgo_t algorithm_of_sum(const Product& product, const ProductPlace& place) const {
    ProductKey key = product.key();
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
