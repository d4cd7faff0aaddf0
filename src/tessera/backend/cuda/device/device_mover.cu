#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/backend/cuda/device/device_mover.h"
#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/kernels/wire_codes.h"

namespace tessera::cuda {
namespace {

constexpr std::uintptr_t kAligned = 16;  // of packs of any dtype

template <class T>
bool is_aligned(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % kAligned == 0;
}

// Pointers by value, as kernels get them.
template <class T>
struct Pointers {
  static constexpr int kMost = 64;
  T* at[kMost];
  int count = 0;
  bool aligned = true;

  explicit Pointers(std::span<T* const> pointers) {
    TESSERA_REQUIRE(pointers.size() <= kMost,
                    ErrorCode::kUnsupported,
                    "{} ranks in one sum on a CUDA device, expected at most {}",
                    pointers.size(),
                    int{kMost});
    for (T* const pointer : pointers) {
      at[count++] = pointer;
      aligned = aligned && is_aligned(pointer);
    }
  }
};

using Sources = Pointers<const std::byte>;
using Places = Pointers<std::byte>;

// Of a copy in units; the first threads take what is left behind the last one.
template <class Unit>
__global__ void copy_units(const std::byte* from, std::byte* to, std::int64_t bytes) {
  constexpr auto kUnit = static_cast<std::int64_t>(sizeof(Unit));
  const std::int64_t units = bytes / kUnit;
  for (std::int64_t i = first_item(); i < units; i += num_threads()) {
    reinterpret_cast<Unit*>(to)[i] = reinterpret_cast<const Unit*>(from)[i];
  }
  if (first_item() < bytes % kUnit) {
    to[units * kUnit + first_item()] = from[units * kUnit + first_item()];
  }
}

// Of rows that are whole units, and begin at them.
template <class Unit>
__global__ void copy_rows_of_units(const std::byte* from,
                                   std::int64_t from_pitch,
                                   std::byte* to,
                                   std::int64_t to_pitch,
                                   std::int64_t units,
                                   std::int64_t count) {
  for (std::int64_t i = first_item(); i < units * count; i += num_threads()) {
    const std::int64_t row = i / units;
    const std::int64_t unit = i % units;
    reinterpret_cast<Unit*>(to + row * to_pitch)[unit] =
        reinterpret_cast<const Unit*>(from + row * from_pitch)[unit];
  }
}

template <class Unit>
__global__ void zero_units(std::byte* to, std::int64_t bytes) {
  constexpr auto kUnit = static_cast<std::int64_t>(sizeof(Unit));
  const std::int64_t units = bytes / kUnit;
  for (std::int64_t i = first_item(); i < units; i += num_threads()) {
    reinterpret_cast<Unit*>(to)[i] = Unit{};
  }
  if (first_item() < bytes % kUnit) {
    to[units * kUnit + first_item()] = std::byte{0};
  }
}

using Unit16 = Pack<float, 4>;

// Calls body(Unit()) where memory at these addresses can be reached in such units.
template <class Unit, class Body>
bool ran_with(std::uintptr_t addresses, const Body& body) {
  if (addresses % sizeof(Unit) != 0) {
    return false;
  }
  body(Unit());
  return true;
}

// With the widest unit.
template <class Body>
void with_unit(std::uintptr_t addresses, const Body& body) {
  const bool ran = ran_with<Unit16>(addresses, body) || ran_with<std::uint32_t>(addresses, body) ||
                   ran_with<std::uint16_t>(addresses, body) || ran_with<std::byte>(addresses, body);
  TESSERA_CHECK(ran, "a byte lies nowhere");
}

__device__ inline float folded(float a, float b, bool is_max) {
  // A maximum with a NaN is NaN.
  return is_max ? (isnan(a) || a > b ? a : b) : a + b;
}

// A thread folds a pack at a time. It reads all sources before it writes: a place may be a source.
template <class T>
__global__ void fold_floats(Sources sources, Places places, std::int64_t count, bool is_max) {
  const bool aligned = sources.aligned && places.aligned;
  const std::int64_t packs = (count + kPack - 1) / kPack;
  for (std::int64_t i = first_item(); i < packs; i += num_threads()) {
    const std::int64_t first = i * kPack;
    const std::int64_t left = count - first;
    const bool whole = aligned && left >= kPack;
    const auto read = [&](int k) {
      const T* const source = reinterpret_cast<const T*>(sources.at[k]) + first;
      return load_pack(source, left, whole);
    };
    Floats<kPack> values = read(0);
    for (int k = 1; k < sources.count; ++k) {
      const Floats<kPack> next = read(k);
      for (int e = 0; e < kPack; ++e) {
        values.at[e] = folded(values.at[e], next.at[e], is_max);
      }
    }
    for (int k = 0; k < places.count; ++k) {
      T* const place = reinterpret_cast<T*>(places.at[k]) + first;
      store_pack(place, values, left, whole);
    }
  }
}

// Words of exact sums wrap around on purpose.
__global__ void fold_integers(Sources sources, Places places, std::int64_t count, bool is_max) {
  for (std::int64_t i = first_item(); i < count; i += num_threads()) {
    std::int64_t value = reinterpret_cast<const std::int64_t*>(sources.at[0])[i];
    for (int k = 1; k < sources.count; ++k) {
      const std::int64_t next = reinterpret_cast<const std::int64_t*>(sources.at[k])[i];
      const auto sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(value) +
                                                 static_cast<std::uint64_t>(next));
      const std::int64_t larger = next > value ? next : value;
      value = is_max ? larger : sum;
    }
    for (int k = 0; k < places.count; ++k) {
      reinterpret_cast<std::int64_t*>(places.at[k])[i] = value;
    }
  }
}

// to = from, then zeros.
template <class From, class To>
__global__ void cast_padded(
    const From* from, std::int64_t count, To* to, std::int64_t padded, bool aligned) {
  const std::int64_t packs = (padded + kPack - 1) / kPack;
  for (std::int64_t i = first_item(); i < packs; i += num_threads()) {
    const std::int64_t first = i * kPack;
    const bool whole = aligned && first + kPack <= count;
    store_pack(to + first, load_pack(from + first, count - first, whole), padded - first, whole);
  }
}

// to = the sum of parts whose elements lie as they are.
template <class From, class To>
__global__ void sum_plain(Sources parts, To* to, std::int64_t count, bool aligned) {
  const std::int64_t packs = (count + kPack - 1) / kPack;
  for (std::int64_t i = first_item(); i < packs; i += num_threads()) {
    const std::int64_t first = i * kPack;
    const std::int64_t left = count - first;
    const bool whole = aligned && left >= kPack;
    const auto read = [&](int k) {
      const From* const part = reinterpret_cast<const From*>(parts.at[k]) + first;
      return load_pack(part, left, whole);
    };
    Floats<kPack> sums = read(0);
    for (int k = 1; k < parts.count; ++k) {
      const Floats<kPack> next = read(k);
      for (int e = 0; e < kPack; ++e) {
        sums.at[e] += next.at[e];
      }
    }
    store_pack(to + first, sums, left, whole);
  }
}

// to = the sum of quantized parts. A thread takes one group of eight elements of a block.
template <class To, bool kInt8>
__global__ void sum_codes(Sources parts, To* to, std::int64_t count, std::int64_t block) {
  const CodeBlock<kInt8> layout(block);
  const std::int64_t blocks = (count + block - 1) / block;
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % (4 * sizeof(To)) == 0;
  for (std::int64_t i = first_item(); i < blocks * layout.groups(); i += num_threads()) {
    const std::int64_t b = i / layout.groups();
    const std::int64_t group = i % layout.groups();
    CodeGroup sums = layout.decode(parts.at[0] + b * layout.bytes(), group);
    for (int k = 1; k < parts.count; ++k) {
      const CodeGroup next = layout.decode(parts.at[k] + b * layout.bytes(), group);
      for (int e = 0; e < kQuad; ++e) {
        sums.low.at[e] += next.low.at[e];
        sums.high.at[e] += next.high.at[e];
      }
    }
    store_quad(to, b * block + layout.low(group), count, aligned, sums.low);
    store_quad(to, b * block + layout.high(group), count, aligned, sums.high);
  }
}

// The blocks of a tensor, padded with zeros, as codes. A block's groups are threads side by side,
// which find its scale together.
template <class T, bool kInt8>
__global__ void quantize(
    const T* x, std::int64_t count, std::int64_t blocks, std::int64_t block, std::byte* to) {
  __shared__ std::uint32_t found[kThreads];
  const CodeBlock<kInt8> layout(block);
  const auto groups = static_cast<unsigned>(layout.groups());
  const std::int64_t at_once = kThreads / groups;  // blocks
  const unsigned group = threadIdx.x % groups;
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % (kQuad * sizeof(T)) == 0;
  // As many rounds for every thread: all of them come to the barriers.
  for (std::int64_t round = blockIdx.x * at_once; round < blocks; round += gridDim.x * at_once) {
    const std::int64_t b = round + threadIdx.x / groups;
    const std::int64_t valid = b < blocks ? count : 0;
    const CodeGroup values = {.low = load_quad(x, b * block + layout.low(group), valid, aligned),
                              .high = load_quad(x, b * block + layout.high(group), valid, aligned)};
    found[threadIdx.x] = largest_bits(values);
    __syncthreads();
    for (unsigned half = groups / 2; half > 0; half /= 2) {
      if (group < half && found[threadIdx.x + half] > found[threadIdx.x]) {
        found[threadIdx.x] = found[threadIdx.x + half];
      }
      __syncthreads();
    }
    const auto largest = std::bit_cast<float>(found[threadIdx.x - group]);
    __syncthreads();  // before the next round writes
    if (b < blocks) {
      layout.encode(values, largest, group, to + b * layout.bytes());
    }
  }
}

// Blocks of less than a group, whose codes lie anywhere: a thread takes one, byte by byte.
template <class T, bool kInt8>
__global__ void quantize_small(
    const T* x, std::int64_t count, std::int64_t blocks, int block, std::byte* to) {
  const std::int64_t bytes = small_block_bytes<kInt8>(block);
  for (std::int64_t b = first_item(); b < blocks; b += num_threads()) {
    float values[kQuad] = {};
    for (int e = 0; e < block; ++e) {
      const std::int64_t place = b * block + e;
      values[e] = place < count ? widen(x[place]) : 0.0F;
    }
    encode_small<kInt8>(values, block, to + b * bytes);
  }
}

template <class To, bool kInt8>
__global__ void sum_small(Sources parts, To* to, std::int64_t count, int block) {
  const std::int64_t bytes = small_block_bytes<kInt8>(block);
  for (std::int64_t i = first_item(); i < count; i += num_threads()) {
    const std::int64_t at = i / block * bytes;
    const auto place = static_cast<int>(i % block);
    float sum = decode_small<kInt8>(parts.at[0] + at, block, place);
    for (int k = 1; k < parts.count; ++k) {
      sum += decode_small<kInt8>(parts.at[k] + at, block, place);
    }
    to[i] = narrow<To>(sum);
  }
}

class DeviceMover final : public Mover {
 public:
  explicit DeviceMover(const Context& context) : context_(context) {}

  bool is_host() const override { return false; }

  void copy(const std::byte* from, std::span<std::byte> to) const override {
    if (from == to.data() || to.empty()) {
      return;
    }
    const auto addresses =
        reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to.data());
    with_unit(addresses, [&](auto unit) {
      using Unit = decltype(unit);
      launch(context_,
             "copy",
             blocks_for(context_, static_cast<std::int64_t>(to.size() / sizeof(Unit))),
             copy_units<Unit>,
             from,
             to.data(),
             static_cast<std::int64_t>(to.size()));
    });
  }

  void copy_rows(const std::byte* from,
                 std::int64_t from_pitch,
                 std::byte* to,
                 std::int64_t to_pitch,
                 std::int64_t bytes,
                 std::int64_t count) const override {
    if (bytes == 0 || count == 0) {
      return;
    }
    const auto all = reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) |
                     static_cast<std::uintptr_t>(from_pitch | to_pitch | bytes);
    with_unit(all, [&](auto unit) {
      using Unit = decltype(unit);
      const std::int64_t units = bytes / static_cast<std::int64_t>(sizeof(Unit));
      launch(context_,
             "copy_rows",
             blocks_for(context_, units * count),
             copy_rows_of_units<Unit>,
             from,
             from_pitch,
             to,
             to_pitch,
             units,
             count);
    });
  }

  void zero(std::span<std::byte> to) const override {
    if (to.empty()) {
      return;
    }
    with_unit(reinterpret_cast<std::uintptr_t>(to.data()), [&](auto unit) {
      using Unit = decltype(unit);
      launch(context_,
             "zero",
             blocks_for(context_, static_cast<std::int64_t>(to.size() / sizeof(Unit))),
             zero_units<Unit>,
             to.data(),
             static_cast<std::int64_t>(to.size()));
    });
  }

  void fold(Fold fold,
            std::span<const std::byte* const> sources,
            const Elements& out,
            std::span<std::byte* const> copies) const override {
    if (out.count == 0) {
      return;
    }
    std::vector<std::byte*> all = {out.data};
    all.insert(all.end(), copies.begin(), copies.end());
    const Sources from(sources);
    const Places places(all);
    const bool is_max = fold == Fold::kMax;
    if (out.dtype == DType::kI64) {
      launch(context_,
             "fold",
             blocks_for(context_, out.count),
             fold_integers,
             from,
             places,
             out.count,
             is_max);
      return;
    }
    with_type(out.dtype, [&](auto type) {
      launch(context_,
             "fold",
             blocks_of_packs(out.count),
             fold_floats<decltype(type)>,
             from,
             places,
             out.count,
             is_max);
    });
  }

  void encode(const ConstElements& from,
              std::int64_t padded,
              const Encoding& encoding,
              std::byte* to) const override {
    if (padded == 0) {
      return;
    }
    TESSERA_CHECK(padded % block_elements(encoding) == 0 || !is_quantized(encoding.format),
                  "{} elements are not whole blocks of {}",
                  padded,
                  encoding.block);
    with_type(from.dtype, [&](auto type) {
      using T = decltype(type);
      const auto* const x = reinterpret_cast<const T*>(from.data);
      switch (encoding.format) {
        case WireFormat::kF32:
          return cast(x, from.count, reinterpret_cast<float*>(to), padded);
        case WireFormat::kBF16:
          return cast(x, from.count, reinterpret_cast<BFloat16*>(to), padded);
        case WireFormat::kInt8:
          return quantize_all<T, true>(x, from.count, padded, encoding.block, to);
        case WireFormat::kInt4:
          return quantize_all<T, false>(x, from.count, padded, encoding.block, to);
      }
    });
  }

  void decode_sum(std::span<const std::byte* const> parts,
                  const Encoding& encoding,
                  const Elements& to) const override {
    if (to.count == 0) {
      return;
    }
    with_type(to.dtype, [&](auto type) {
      using T = decltype(type);
      auto* const out = reinterpret_cast<T*>(to.data);
      const Sources from(parts);
      switch (encoding.format) {
        case WireFormat::kF32:
          return sum_as_they_are<float>(from, out, to.count);
        case WireFormat::kBF16:
          return sum_as_they_are<BFloat16>(from, out, to.count);
        case WireFormat::kInt8:
          return sum_all<T, true>(from, out, to.count, encoding.block);
        case WireFormat::kInt4:
          return sum_all<T, false>(from, out, to.count, encoding.block);
      }
    });
  }

  void finish() const override { synchronize(context_.stream()); }

 private:
  std::int64_t blocks_of_packs(std::int64_t elements) const {
    return blocks_for(context_, (elements + kPack - 1) / kPack);
  }

  template <class From, class To>
  void cast(const From* from, std::int64_t count, To* to, std::int64_t padded) const {
    launch(context_,
           "cast",
           blocks_of_packs(padded),
           cast_padded<From, To>,
           from,
           count,
           to,
           padded,
           is_aligned(from) && is_aligned(to));
  }

  template <class From, class To>
  void sum_as_they_are(const Sources& parts, To* to, std::int64_t count) const {
    launch(context_,
           "sum of parts",
           blocks_of_packs(count),
           sum_plain<From, To>,
           parts,
           to,
           count,
           parts.aligned && is_aligned(to));
  }

  template <class T, bool kInt8>
  void quantize_all(const T* x,
                    std::int64_t count,
                    std::int64_t padded,
                    std::int64_t block,
                    std::byte* to) const {
    const std::int64_t blocks = padded / block;
    if (block < kPack) {
      launch(context_,
             "quantize",
             blocks_for(context_, blocks),
             quantize_small<T, kInt8>,
             x,
             count,
             blocks,
             static_cast<int>(block),
             to);
    } else {
      launch(context_,
             "quantize",
             blocks_of_packs(padded),
             quantize<T, kInt8>,
             x,
             count,
             blocks,
             block,
             to);
    }
  }

  template <class T, bool kInt8>
  void sum_all(const Sources& parts, T* to, std::int64_t count, std::int64_t block) const {
    if (block < kPack) {
      launch(context_,
             "dequantize",
             blocks_for(context_, count),
             sum_small<T, kInt8>,
             parts,
             to,
             count,
             static_cast<int>(block));
    } else {
      launch(context_,
             "dequantize",
             blocks_of_packs(count),
             sum_codes<T, kInt8>,
             parts,
             to,
             count,
             block);
    }
  }

  const Context& context_;
};

}  // namespace

std::unique_ptr<Mover> make_device_mover(const Context& context) {
  return std::make_unique<DeviceMover>(context);
}

}  // namespace tessera::cuda
