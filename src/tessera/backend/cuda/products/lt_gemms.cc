#include "tessera/backend/cuda/products/lt_gemms.h"

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

#include "tessera/backend/cuda/device/check.h"
#include "tessera/backend/cuda/machine/limits.h"
#include "tessera/backend/cuda/products/algorithm_cache.h"
#include "tessera/backend/cuda/products/lt_product.h"
#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

constexpr std::uintptr_t kBestAlignment = 256;  // more gains nothing

// What cuBLASLt asks of the pitch of gelu's argument.
constexpr std::int64_t kArgumentPitch = 8;

using LtHandle = Handle<cublasLtHandle_t, cublasLtDestroy>;

// Of those that cuBLASLt proposes, best first by its own estimate.
constexpr int kTimedAlgorithms = 16;

// The largest power of two, up to kBestAlignment, that divides an address, and those of matrices so
// many bytes apart.
std::uint32_t alignment_of(const void* data, std::int64_t stride = 0) {
  const auto address =
      reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(stride) | kBestAlignment;
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
  explicit LtGemms(const DeviceOptions& options)
      : tf32_(options.tf32),
        shares_choices_(options.shares_choices),
        has_files_(!options.algorithm_files.empty()),
        handle_(create_handle()) {
    if (has_files_ || shares_choices_) {
      cache_.emplace(machine(), options.algorithm_files);
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
         .epilogue = operands.bias != nullptr ? Epilogue::kBias : Epilogue::kNone},
        {.a = operands.a, .b = operands.b, .c = operands.c, .bias = operands.bias},
        workspace);
  }

  void run_batch(CUstream_st* stream,
                 const Gemm& gemm,
                 const GemmBatch& batch,
                 const GemmOperands& first,
                 std::span<std::byte> workspace) override {
    run(stream,
        {.gemm = gemm,
         .batch = batch,
         .a = gemm.input,
         .b = gemm.input,
         .tf32 = tf32_ && gemm.input == DType::kF32},
        {.a = first.a, .b = first.b, .c = first.c},
        workspace);
  }

  // In bf16: of other dtypes the library was found to apply gelu in a pass of its own
  // (karpathy/llm.c, pull requests 338 and 653, where both directions gain on H100). It is gelu's
  // tanh form (NVIDIA/TensorRT-LLM, pull request 17693).
  bool run_gelu(CUstream_st* stream,
                const Gemm& gemm,
                const GeluOperands& operands,
                std::span<std::byte> workspace) override {
    const bool has_argument = operands.argument != nullptr;
    if (gemm.input != DType::kBF16 || gemm.output != DType::kBF16 ||
        gemm.pitch_c % kArgumentPitch != 0 ||
        (has_argument && operands.pitch_argument % kArgumentPitch != 0)) {
      return false;
    }
    return run_where_possible(
        stream,
        {.gemm = gemm,
         .a = gemm.input,
         .b = gemm.input,
         .epilogue = operands.bias == nullptr ? Epilogue::kGeluBackward
                     : has_argument           ? Epilogue::kGeluWithArgument
                                              : Epilogue::kGelu,
         .pitch_argument = has_argument ? operands.pitch_argument : 0,
         .alignment_argument = has_argument ? alignment_of(operands.argument) : 0},
        {.a = operands.a,
         .b = operands.b,
         .c = operands.c,
         .bias = operands.bias,
         .argument = operands.argument},
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

  bool shares_choices() const override { return shares_choices_; }

  std::string choices(ProductChoices which) const override {
    return which == ProductChoices::kKnown ? cache_.value().known() : cache_.value().noted();
  }

  // Products that are added to what is there follow those that are not.
  void take_choices(ProductChoices which, std::span<const std::string> of_ranks) override {
    has_heard_ = has_heard_ || which == ProductChoices::kTimed;
    // What is known is what files say: who has them knows it, and keeps what is used.
    if (which == ProductChoices::kTimed || !has_files_) {
      cache_.value().take(of_ranks);
    }
    for (const bool accumulate : {false, true}) {
      for (const std::unique_ptr<Product>& product : products_) {
        if (product->key().gemm.accumulate != accumulate) {
          continue;
        }
        if (accumulate) {
          product->choose(algorithm_of_sum(*product));
        } else if (const auto algorithm = known(*product)) {
          product->choose(algorithm);
        }
      }
    }
  }

 private:
  void run(CUstream_st* stream,
           const ProductKey& key,
           const ProductOperands& operands,
           std::span<std::byte> workspace) {
    TESSERA_REQUIRE(run_where_possible(stream, key, operands, workspace),
                    ErrorCode::kUnsupported,
                    "cuBLASLt has no algorithm that runs for a product of {} x {} x {} ({} into "
                    "{}): choose sizes that are multiples of 8",
                    key.gemm.m,
                    key.gemm.n,
                    key.gemm.k,
                    name(key.a),
                    name(key.gemm.output));
  }

  // Whether the library has an algorithm.
  bool run_where_possible(CUstream_st* stream,
                          ProductKey key,
                          const ProductOperands& operands,
                          std::span<std::byte> workspace) {
    void* start = workspace.data();
    std::size_t space = workspace.size();
    TESSERA_CHECK(std::align(kLtAlignment,
                             static_cast<std::size_t>(limits().gemm_workspace) - kLtAlignment,
                             start,
                             space) != nullptr,
                  "{} bytes of workspace for a product, expected {}",
                  workspace.size(),
                  limits().gemm_workspace);
    const auto apart = [](std::int64_t elements, DType dtype) {
      return elements * static_cast<std::int64_t>(size_bytes(dtype));
    };
    key.alignment_a = alignment_of(operands.a, apart(key.batch.stride_a, key.a));
    key.alignment_b = alignment_of(operands.b, apart(key.batch.stride_b, key.b));
    key.alignment_c = alignment_of(operands.c, apart(key.batch.stride_c, key.gemm.output));
    key.alignment_bias = operands.bias != nullptr ? alignment_of(operands.bias) : 0;
    const ProductPlace place = {.handle = handle_.get(),
                                .stream = stream,
                                .workspace = {static_cast<std::byte*>(start), space}};
    const Product& chosen = product(key, operands, place);
    if (!chosen.algorithm()) {
      return false;
    }
    chosen.run(place, operands);
    return true;
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

  std::optional<cublasLtMatmulAlgo_t> algorithm(const Product& product,
                                                const ProductOperands& operands,
                                                const ProductPlace& place) {
    if (!cache_) {
      return first_proposed(product);
    }
    if (product.key().gemm.accumulate) {
      return algorithm_of_sum(product);
    }
    if (const auto algorithm = known(product)) {
      return algorithm;
    }
    const std::string text = product.key().text();
    if (has_heard_) {
      const auto algorithm = first_proposed(product);
      if (algorithm) {
        cache_->add(text, text_of(*algorithm));  // as other ranks do, and when the run goes on
      }
      return algorithm;
    }
    const std::optional<cublasLtMatmulAlgo_t> fastest =
        product.fastest(place, operands, product.propose(handle_.get(), kTimedAlgorithms));
    if (fastest && shares_choices_) {
      cache_->note(text, text_of(*fastest));
    } else if (fastest) {
      cache_->add(text, text_of(*fastest));
    }
    return fastest;
  }

  // The algorithm that the cache has, where the library takes it.
  std::optional<cublasLtMatmulAlgo_t> known(const Product& product) {
    const std::optional<std::string> kept = cache_->use(product.key().text());
    const auto algorithm = kept ? algorithm_of(*kept) : std::nullopt;
    return algorithm && product.takes(handle_.get(), *algorithm) ? algorithm : std::nullopt;
  }

  std::optional<cublasLtMatmulAlgo_t> first_proposed(const Product& product) const {
    const std::vector<cublasLtMatmulAlgo_t> proposed = product.propose(handle_.get(), 1);
    return proposed.empty() ? std::nullopt : std::optional(proposed[0]);
  }

  // To time a product that is added to what C holds would change that: it takes the algorithm of
  // the same product without, which the first microbatch has run.
  std::optional<cublasLtMatmulAlgo_t> algorithm_of_sum(const Product& product) const {
    ProductKey key = product.key();
    key.gemm.accumulate = false;
    const auto twin = std::ranges::find_if(
        products_, [&](const std::unique_ptr<Product>& made) { return made->key() == key; });
    const bool takes_it = twin != products_.end() && (*twin)->algorithm() &&
                          product.takes(handle_.get(), *(*twin)->algorithm());
    return takes_it ? (*twin)->algorithm() : first_proposed(product);
  }

  bool tf32_;
  bool shares_choices_;
  bool has_files_;
  bool has_heard_ = false;  // of what other ranks timed
  LtHandle handle_;
  std::optional<AlgorithmCache> cache_;  // none: nothing is timed
  std::vector<std::unique_ptr<Product>> products_;
};

}  // namespace

std::unique_ptr<Gemms> make_lt_gemms(const DeviceOptions& options) {
  return std::make_unique<LtGemms>(options);
}

}  // namespace tessera::cuda
