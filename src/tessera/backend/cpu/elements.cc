#include "tessera/backend/cpu/elements.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/base/error.h"
#include "tessera/ir/dtype.h"
#include "tessera/ir/view.h"

namespace tessera::cpu {

namespace {

// Larger than the caches that a rank may count on; measured: streaming wins from about here on.
constexpr std::int64_t kStreamBytes = std::int64_t{64} << 20U;
constexpr std::uintptr_t kCacheLineBytes = 64;

std::int32_t inner_dims(const View& view) {
  std::int64_t expected = 1;
  std::int32_t inner = 0;
  while (inner < view.num_dims) {
    const auto dim = static_cast<std::size_t>(view.num_dims - 1 - inner);
    if (view.sizes[dim] != 1 && view.strides[dim] != expected) {
      break;
    }
    expected *= view.sizes[dim];
    ++inner;
  }
  return inner;
}

bool may_stream(const View& result, std::int32_t inner, std::span<const View> operands) {
  for (const View& operand : operands) {
    if (operand.data == result.data) {
      return false;
    }
  }
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(result.dtype));
  const View::Rows rows = result.rows(inner);
  const auto stride_bytes = static_cast<std::uintptr_t>(rows.stride * element_bytes);
  return result.num_elements() * element_bytes >= kStreamBytes &&
         reinterpret_cast<std::uintptr_t>(result.data) % kCacheLineBytes == 0 &&
         (rows.count == 1 || stride_bytes % kCacheLineBytes == 0);
}

}  // namespace

std::int32_t common_inner_dims(std::span<const View> views) {
  std::int32_t inner = views[0].num_dims;
  for (const View& view : views) {
    const auto dims = static_cast<std::size_t>(view.num_dims);
    TESSERA_CHECK(
        view.num_dims == views[0].num_dims &&
            std::equal(view.sizes.begin(), view.sizes.begin() + dims, views[0].sizes.begin()),
        "views of {} and {} dims differ in size",
        views[0].num_dims,
        view.num_dims);
    inner = std::min(inner, inner_dims(view));
  }
  return inner;
}

Form form_of(std::span<const View> results, std::int32_t inner, std::span<const View> operands) {
  const DType dtype = results[0].dtype;
  TESSERA_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16,
                  ErrorCode::kUnsupported,
                  "CPU kernels compute in f32 and bf16, not in {}",
                  name(dtype));
  const bool stream = std::all_of(results.begin(), results.end(), [&](const View& result) {
    return may_stream(result, inner, operands);
  });
  return {.bf16 = dtype == DType::kBF16, .stream = stream};
}

}  // namespace tessera::cpu
