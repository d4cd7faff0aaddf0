#include "tessera/hugging_face/convert_elements.h"

#include <cstring>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/base/half.h"

namespace tessera {
namespace {

float widen(float value) {
  return value;
}

float widen(BFloat16 value) {
  return to_float(value);
}

float widen(Float16 value) {
  return to_float(value);
}

// Calls narrow(value) of each element and puts what it returns.
template <class From, class Narrow>
void convert(const std::byte* from,
             std::size_t count,
             const StridedElements& to,
             const Narrow& narrow) {
  using To = decltype(narrow(0.0F));
  const auto each = [&](auto stride) {
    for (std::size_t i = 0; i < count; ++i) {
      From value;
      std::memcpy(&value, from + i * sizeof value, sizeof value);
      const To converted = narrow(widen(value));
      std::memcpy(to.data + static_cast<std::int64_t>(i) * stride, &converted, sizeof converted);
    }
  };
  // A stride that the compiler knows lets it take many at once.
  using Dense = std::integral_constant<std::int64_t, sizeof(To)>;
  if (to.stride == Dense()) {
    each(Dense());
  } else {
    each(to.stride);
  }
}

template <class From>
void convert(const std::byte* from, std::size_t count, const StridedElements& to) {
  if (to.dtype == DType::kF32) {
    convert<From>(from, count, to, [](float value) { return value; });
  } else if (to.dtype == DType::kBF16) {
    convert<From>(from, count, to, [](float value) { return to_bfloat16(value); });
  } else {
    convert<From>(from, count, to, [](float value) { return to_float16(value); });
  }
}

bool is_known(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

}  // namespace

void convert_elements(const DenseElements& from, std::size_t count, const StridedElements& to) {
  TESSERA_CHECK(is_known(from.dtype) && is_known(to.dtype),
                "elements of {} as {}",
                name(from.dtype),
                name(to.dtype));
  if (from.dtype == DType::kF32) {
    convert<float>(from.data, count, to);
  } else if (from.dtype == DType::kBF16) {
    convert<BFloat16>(from.data, count, to);
  } else {
    convert<Float16>(from.data, count, to);
  }
}

}  // namespace tessera
