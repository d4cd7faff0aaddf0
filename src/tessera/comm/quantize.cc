#include "tessera/comm/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/comm/wire_scale.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/comm/quantize.cc"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

constexpr std::int64_t kMaxBlock = 256;
constexpr std::int64_t kScaleBytes = sizeof(float);

using U8 = hn::Rebind<std::uint8_t, F32>;
using I8 = hn::Rebind<std::int8_t, F32>;

HWY_INLINE void store_bytes(AllLanes /*lanes*/, std::uint8_t* data, hn::Vec<U8> bytes) {
  hn::StoreU(bytes, U8(), data);
}

HWY_INLINE void store_bytes(FirstLanes lanes, std::uint8_t* data, hn::Vec<U8> bytes) {
  std::array<std::uint8_t, kLanes> padded = {};
  hn::StoreU(bytes, U8(), padded.data());
  std::memcpy(data, padded.data(), static_cast<std::size_t>(lanes.count));
}

// Signed bytes, each widened.
HWY_INLINE hn::Vec<I32> load_codes(AllLanes /*lanes*/, const std::byte* data) {
  return hn::PromoteTo(I32(), hn::LoadU(I8(), reinterpret_cast<const std::int8_t*>(data)));
}

HWY_INLINE hn::Vec<I32> load_codes(FirstLanes lanes, const std::byte* data) {
  std::array<std::byte, kLanes> padded = {};
  std::memcpy(padded.data(), data, static_cast<std::size_t>(lanes.count));
  return load_codes(AllLanes(), padded.data());
}

// The largest |x| as bits: these order as the values do, with infinity and NaN above all others.
HWY_INLINE std::int32_t largest_bits(const float* x, std::int64_t count) {
  const I32 i32;
  auto largest = hn::Zero(i32);
  for_lanes(count, [&](auto lanes, std::int64_t i) HWY_ATTR {
    const auto bits = hn::BitCast(i32, hn::Abs(load(lanes, x + i)));
    largest = hn::Max(largest, bits);
  });
  return hn::GetLane(hn::MaxOfLanes(i32, largest));
}

// x / scale to the nearest integer, in the low bits.
HWY_INLINE hn::Vec<U32> code_bits(VecF32 x, VecF32 scale) {
  return hn::BitCast(U32(), hn::Add(hn::Div(x, scale), hn::Set(F32(), kWireRounder)));
}

HWY_INLINE void quantize_block(const float* x,
                               const Encoding& encoding,
                               std::byte* to,
                               std::int64_t bytes) {
  const bool is_int8 = encoding.format == WireFormat::kInt8;
  const auto largest = std::bit_cast<float>(largest_bits(x, encoding.block));
  auto* const codes = reinterpret_cast<std::uint8_t*>(to + kScaleBytes);
  const float scale = wire_scale(largest, wire_range(is_int8));
  std::memcpy(to, &scale, sizeof(scale));
  if (!(scale > 0.0F)) {
    std::fill_n(codes, bytes - kScaleBytes, std::uint8_t{0});
    return;
  }
  const VecF32 divisor = hn::Set(F32(), scale);
  if (is_int8) {
    for_lanes(encoding.block, [&](auto lanes, std::int64_t i) HWY_ATTR {
      store_bytes(lanes, codes + i, hn::TruncateTo(U8(), code_bits(load(lanes, x + i), divisor)));
    });
    return;
  }
  const std::int64_t half = encoding.block / 2;
  for_lanes(half, [&](auto lanes, std::int64_t i) HWY_ATTR {
    const auto low = hn::And(code_bits(load(lanes, x + i), divisor), hn::Set(U32(), 0xfU));
    const auto high = hn::ShiftLeft<4>(code_bits(load(lanes, x + half + i), divisor));
    store_bytes(lanes, codes + i, hn::TruncateTo(U8(), hn::Or(low, high)));
  });
}

// Calls take(lanes, index, values) for all values of a block.
template <class Take>
HWY_INLINE void dequantize_block(const std::byte* from,
                                 const Encoding& encoding,
                                 const Take& take) {
  float scale = 0.0F;
  std::memcpy(&scale, from, sizeof(scale));
  const VecF32 factor = hn::Set(F32(), scale);
  const std::byte* const codes = from + kScaleBytes;
  if (encoding.format == WireFormat::kInt8) {
    for_lanes(encoding.block, [&](auto lanes, std::int64_t i) HWY_ATTR {
      take(lanes, i, hn::Mul(hn::ConvertTo(F32(), load_codes(lanes, codes + i)), factor));
    });
    return;
  }
  const std::int64_t half = encoding.block / 2;
  for_lanes(half, [&](auto lanes, std::int64_t i) HWY_ATTR {
    const auto both = load_codes(lanes, codes + i);
    const auto low = hn::ShiftRight<28>(hn::ShiftLeft<28>(both));
    const auto high = hn::ShiftRight<4>(both);
    take(lanes, i, hn::Mul(hn::ConvertTo(F32(), low), factor));
    take(lanes, half + i, hn::Mul(hn::ConvertTo(F32(), high), factor));
  });
}

template <class T, class Take>
HWY_INLINE void load_block(const std::byte* from, std::int64_t count, const Take& take) {
  const T* const elements = reinterpret_cast<const T*>(from);
  for_lanes(count, [&](auto lanes, std::int64_t i) HWY_ATTR {
    take(lanes, i, load(lanes, elements + i));
  });
}

// Calls take(lanes, index, values) for all values of a block of `count` elements.
template <class Take>
HWY_INLINE void decode_block(const std::byte* from,
                             const Encoding& encoding,
                             std::int64_t count,
                             const Take& take) {
  switch (encoding.format) {
    case WireFormat::kF32:
      return load_block<float>(from, count, take);
    case WireFormat::kBF16:
      return load_block<BFloat16>(from, count, take);
    case WireFormat::kInt8:
    case WireFormat::kInt4:
      return dequantize_block(from, encoding, take);
  }
}

template <class From, class T>
HWY_INLINE void store_all(const From* x, std::int64_t count, T* to) {
  for_lanes(count,
            [&](auto lanes, std::int64_t i) HWY_ATTR { store(lanes, to + i, load(lanes, x + i)); });
}

// Elements [first, first + size) of `from` in f32, with zeros after its end; in `room` unless they
// lie so already.
template <class T>
HWY_INLINE const float* block_of(const ConstElements& from,
                                 std::int64_t first,
                                 std::int64_t size,
                                 float* room) {
  const T* const elements = reinterpret_cast<const T*>(from.data) + first;
  const std::int64_t valid = std::clamp<std::int64_t>(from.count - first, 0, size);
  if constexpr (std::same_as<T, float>) {
    if (valid == size) {
      return elements;
    }
  }
  store_all(elements, valid, room);
  std::fill(room + valid, room + size, 0.0F);
  return room;
}

template <class T>
void encode_blocks(const ConstElements& from,
                   std::int64_t padded,
                   const Encoding& encoding,
                   std::byte* to,
                   Range range) {
  const std::int64_t block = block_elements(encoding);
  const std::int64_t bytes = wire_bytes(encoding, block);
  std::array<float, kMaxBlock> room;
  for (std::int64_t b = range.begin; b < range.end; ++b) {
    const std::int64_t first = b * block;
    const std::int64_t size = std::min(block, padded - first);
    const float* const x = block_of<T>(from, first, size, room.data());
    std::byte* const at = to + b * bytes;
    switch (encoding.format) {
      case WireFormat::kF32:
        std::memcpy(at, x, static_cast<std::size_t>(size) * sizeof(float));
        break;
      case WireFormat::kBF16:
        store_all(x, size, reinterpret_cast<BFloat16*>(at));
        break;
      case WireFormat::kInt8:
      case WireFormat::kInt4:
        quantize_block(x, encoding, at, bytes);
        break;
    }
  }
}

void encode_range(const ConstElements& from,
                  std::int64_t padded,
                  const Encoding& encoding,
                  std::byte* to,
                  Range range) {
  if (from.dtype == DType::kF32) {
    encode_blocks<float>(from, padded, encoding, to, range);
  } else {
    encode_blocks<BFloat16>(from, padded, encoding, to, range);
  }
}

void decode_sum_range(std::span<const std::byte* const> parts,
                      const Encoding& encoding,
                      const Elements& to,
                      Range range) {
  const std::int64_t block = block_elements(encoding);
  const std::int64_t bytes = wire_bytes(encoding, block);
  std::array<float, kMaxBlock> sum;
  for (std::int64_t b = range.begin; b < range.end; ++b) {
    const std::int64_t first = b * block;
    const std::int64_t size = std::min(block, to.count - first);
    const std::int64_t at = b * bytes;
    decode_block(parts[0] + at, encoding, size, [&](auto lanes, std::int64_t i, VecF32 x) HWY_ATTR {
      store(lanes, sum.data() + i, x);
    });
    for (const std::byte* const part : parts.subspan(1)) {
      decode_block(part + at, encoding, size, [&](auto lanes, std::int64_t i, VecF32 x) HWY_ATTR {
        store(lanes, sum.data() + i, hn::Add(load(lanes, sum.data() + i), x));
      });
    }
    if (to.dtype == DType::kF32) {
      store_all(sum.data(), size, reinterpret_cast<float*>(to.data) + first);
    } else {
      store_all(sum.data(), size, reinterpret_cast<BFloat16*>(to.data) + first);
    }
  }
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(encode_range);
HWY_EXPORT(decode_sum_range);

}  // namespace

}  // namespace cpu

namespace {

void require_real(DType dtype) {
  TESSERA_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16,
                  ErrorCode::kUnsupported,
                  "{} on the wire, expected f32 or bf16",
                  name(dtype));
}

}  // namespace

void encode(const ConstElements& from,
            std::int64_t padded,
            const Encoding& encoding,
            std::byte* to,
            ThreadTeam& team) {
  require_real(from.dtype);
  const std::int64_t block = block_elements(encoding);
  TESSERA_CHECK(padded >= from.count && (!is_quantized(encoding.format) || padded % block == 0),
                "{} elements padded to {}, which is not whole blocks of {}",
                from.count,
                padded,
                block);
  auto* const range_kernel = HWY_DYNAMIC_DISPATCH(cpu::encode_range);
  cpu::parallel_ranges(team,
                       {.count = (padded + block - 1) / block, .elements = block},
                       [&](cpu::Range range) { range_kernel(from, padded, encoding, to, range); });
}

void decode_sum(std::span<const std::byte* const> parts,
                const Encoding& encoding,
                const Elements& to,
                ThreadTeam& team) {
  require_real(to.dtype);
  const std::int64_t block = block_elements(encoding);
  const auto num_parts = static_cast<std::int64_t>(parts.size());
  auto* const range_kernel = HWY_DYNAMIC_DISPATCH(cpu::decode_sum_range);
  cpu::parallel_ranges(team,
                       {.count = (to.count + block - 1) / block, .elements = block * num_parts},
                       [&](cpu::Range range) { range_kernel(parts, encoding, to, range); });
}

}  // namespace tessera

#endif  // HWY_ONCE
