// What a device's mover does to bytes, against the host's.

#include "tessera/comm/mover.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/cuda/kernels/kernels_under_test.h"
#include "tessera/base/format.h"
#include "tessera/base/half.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using Bytes = std::vector<std::byte>;

// A call of a mover: what it reads, and where it writes.
using MoverCall = std::function<void(const Mover&, const std::byte* in, std::byte* out)>;

void leave_as_it_is(Bytes& /*bytes*/) {}

// Makes one of all NaNs of bf16: a device rounds each to the same one, the host keeps its sign and
// payload.
void unify_nans(Bytes& bytes) {
  constexpr std::uint16_t kNaN = 0x7fff;
  for (std::size_t at = 0; at + 2 <= bytes.size(); at += 2) {
    BFloat16 value;
    std::memcpy(&value, &bytes[at], 2);
    if (std::isnan(to_float(value))) {
      std::memcpy(&bytes[at], &kNaN, 2);
    }
  }
}

class CudaMover : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    device_ = cuda::kernels_under_test(reason);
    if (device_ == nullptr) {
      GTEST_SKIP() << reason;
    }
  }

  // What a call leaves of poisoned bytes: both sides' must be equal, once `unify` has seen them.
  void expect_equal(const Bytes& in,
                    std::size_t out_bytes,
                    const std::string& what,
                    const MoverCall& call,
                    const std::function<void(Bytes&)>& unify = leave_as_it_is) {
    Bytes expected = left_by(*cpu_, host_mover(), in, out_bytes, call);
    Bytes found = left_by(*device_, device_->mover(StreamId{0}), in, out_bytes, call);
    unify(expected);
    unify(found);
    EXPECT_EQ(found, expected) << what;
  }

  static Bytes left_by(Backend& backend,
                       const Mover& mover,
                       const Bytes& in,
                       std::size_t out_bytes,
                       const MoverCall& call) {
    constexpr std::size_t kGuard = 64;
    const std::size_t first = (in.size() + 255) / 256 * 256;
    const std::size_t size = first + out_bytes + kGuard;
    const std::unique_ptr<Arena> arena = backend.allocate(static_cast<std::int64_t>(size));
    std::fill_n(arena->host(), size, std::byte{0xA5});
    std::ranges::copy(in, arena->host());
    arena->to_device(0, static_cast<std::int64_t>(size));
    call(mover, arena->data(), arena->data() + first);
    mover.finish();
    arena->to_host(0, static_cast<std::int64_t>(size));
    return {arena->host() + first, arena->host() + size};
  }

 private:
  std::unique_ptr<DeviceBackend> device_;
  std::unique_ptr<Backend> cpu_ = make_cpu_backend(1);
};

// Values of many magnitudes, fresh for each run of the test.
Bytes random_values(DType dtype, std::int64_t count) {
  static std::mt19937_64 random(std::random_device{}());
  std::normal_distribution<float> normal;
  Bytes bytes(static_cast<std::size_t>(count) * size_bytes(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = std::ldexp(normal(random), static_cast<int>(random() % 12) - 6);
    if (dtype == DType::kF32) {
      std::memcpy(&bytes[static_cast<std::size_t>(4 * i)], &value, 4);
    } else if (dtype == DType::kBF16) {
      const BFloat16 rounded = to_bfloat16(value);
      std::memcpy(&bytes[static_cast<std::size_t>(2 * i)], &rounded, 2);
    } else {
      const std::uint64_t word = random();
      std::memcpy(&bytes[static_cast<std::size_t>(8 * i)], &word, 8);
    }
  }
  return bytes;
}

std::vector<Encoding> encodings() {
  std::vector<Encoding> all = {{.format = WireFormat::kF32}, {.format = WireFormat::kBF16}};
  for (const WireFormat format : {WireFormat::kInt8, WireFormat::kInt4}) {
    for (const std::int64_t block : {2, 4, 8, 16, 64, 256}) {
      all.push_back({.format = format, .block = block});
    }
  }
  return all;
}

std::string text(const Encoding& encoding, DType dtype, std::int64_t count) {
  return format("{} of {} elements of {}, block {}",
                name(encoding.format),
                count,
                name(dtype),
                encoding.block);
}

constexpr std::array<std::int64_t, 6> kSizes = {1, 7, 256, 1000, 4096, 9001};

std::int64_t padded_to_blocks(std::int64_t count, const Encoding& encoding) {
  const std::int64_t block = block_elements(encoding);
  return (count + block - 1) / block * block;
}

TEST_F(CudaMover, EncodesAsTheHost) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Encoding& encoding : encodings()) {
      for (const std::int64_t count : kSizes) {
        const std::int64_t padded = padded_to_blocks(count, encoding);
        expect_equal(random_values(dtype, count),
                     static_cast<std::size_t>(wire_bytes(encoding, padded)),
                     text(encoding, dtype, count),
                     [&](const Mover& mover, const std::byte* in, std::byte* out) {
                       mover.encode(
                           {.dtype = dtype, .data = in, .count = count}, padded, encoding, out);
                     });
      }
    }
  }
}

// Blocks of zeros, of the least and the largest values, and with what is not finite.
TEST_F(CudaMover, EncodesExtremesAsTheHost) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> extremes = {
      0.0F, -0.0F, kLeast, 3 * kLeast, kMost, -kMost, kInfinity, std::nanf(""), 1e-40F, 7.0F};
  for (const Encoding& encoding : encodings()) {
    for (const float extreme : extremes) {
      std::vector<float> values(512, 0.0F);
      values[3] = extreme;
      values[300] = -extreme;
      values[301] = extreme / 3;
      Bytes in(values.size() * sizeof(float));
      std::memcpy(in.data(), values.data(), in.size());
      expect_equal(
          in,
          static_cast<std::size_t>(wire_bytes(encoding, 512)),
          format("{} in {}", extreme, text(encoding, DType::kF32, 512)),
          [&](const Mover& mover, const std::byte* from, std::byte* out) {
            mover.encode({.dtype = DType::kF32, .data = from, .count = 512}, 512, encoding, out);
          },
          encoding.format == WireFormat::kBF16 ? unify_nans : leave_as_it_is);
    }
  }
}

TEST_F(CudaMover, SumsPartsAsTheHost) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Encoding& encoding : encodings()) {
      for (const std::int64_t count : kSizes) {
        for (const std::int64_t num_parts : {1, 3}) {
          const std::int64_t padded = padded_to_blocks(count, encoding);
          const std::int64_t part_bytes = wire_bytes(encoding, padded);
          Bytes in;
          for (std::int64_t part = 0; part < num_parts; ++part) {
            const Bytes values = random_values(DType::kF32, padded);
            Bytes codes(static_cast<std::size_t>(part_bytes));
            host_mover().encode({.dtype = DType::kF32, .data = values.data(), .count = padded},
                                padded,
                                encoding,
                                codes.data());
            in.insert(in.end(), codes.begin(), codes.end());
          }
          expect_equal(in,
                       static_cast<std::size_t>(count) * size_bytes(dtype),
                       text(encoding, dtype, count),
                       [&](const Mover& mover, const std::byte* from, std::byte* out) {
                         std::vector<const std::byte*> parts;
                         for (std::int64_t part = 0; part < num_parts; ++part) {
                           parts.push_back(from + part * part_bytes);
                         }
                         mover.decode_sum(
                             parts, encoding, {.dtype = dtype, .data = out, .count = count});
                       });
        }
      }
    }
  }
}

TEST_F(CudaMover, FoldsAsTheHost) {
  constexpr std::int64_t kSources = 3;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64}) {
    for (const Fold fold : {Fold::kSum, Fold::kMax}) {
      for (const std::int64_t count : kSizes) {
        const auto bytes = count * static_cast<std::int64_t>(size_bytes(dtype));
        expect_equal(random_values(dtype, kSources * count),
                     static_cast<std::size_t>(3 * bytes),
                     format("{} of {} elements of {}", name(fold), count, name(dtype)),
                     [&](const Mover& mover, const std::byte* in, std::byte* out) {
                       const std::array<const std::byte*, kSources> sources = {
                           in, in + bytes, in + 2 * bytes};
                       const std::array<std::byte*, 2> copies = {out + bytes, out + 2 * bytes};
                       mover.fold(
                           fold, sources, {.dtype = dtype, .data = out, .count = count}, copies);
                     });
      }
    }
  }
}

// The place of the result may be a source, as in sums in place.
TEST_F(CudaMover, FoldsInPlace) {
  constexpr std::int64_t kCount = 1001;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  expect_equal(random_values(DType::kF32, 2 * kCount),
               kBytes,
               "in place",
               [&](const Mover& mover, const std::byte* in, std::byte* out) {
                 mover.copy(in, {out, kBytes});
                 const std::array<const std::byte*, 2> sources = {out, in + kBytes};
                 mover.fold(
                     Fold::kSum, sources, {.dtype = DType::kF32, .data = out, .count = kCount}, {});
               });
}

TEST_F(CudaMover, CopiesAndClearsAnyBytes) {
  const Bytes in = random_values(DType::kF32, 300);
  for (const std::size_t from : {0U, 1U, 2U, 4U, 16U}) {
    for (const std::size_t to : {0U, 1U, 2U, 4U, 16U}) {
      for (const std::size_t size : {0U, 1U, 15U, 64U, 1003U}) {
        expect_equal(in,
                     1100,
                     format("{} bytes from {} to {}", size, from, to),
                     [&](const Mover& mover, const std::byte* source, std::byte* out) {
                       mover.copy(source + from, {out + to, size});
                       mover.zero({out + 1040 + to, size % 50});
                     });
      }
    }
  }
}

TEST_F(CudaMover, CopiesRows) {
  const Bytes in = random_values(DType::kF32, 300);

  struct Case {
    std::int64_t first;
    std::int64_t from_pitch;
    std::int64_t to_pitch;
    std::int64_t bytes;
    std::int64_t count;
  };

  for (const Case& c : {Case{0, 48, 32, 32, 20},
                        Case{0, 32, 48, 32, 20},
                        Case{4, 12, 20, 12, 50},
                        Case{2, 7, 11, 5, 90},
                        Case{1, 100, 64, 33, 1},
                        Case{0, 16, 16, 0, 5},
                        Case{0, 16, 16, 16, 0}}) {
    expect_equal(in,
                 1100,
                 format("{} rows of {} from {}", c.count, c.bytes, c.first),
                 [&](const Mover& mover, const std::byte* source, std::byte* out) {
                   mover.copy_rows(
                       source + c.first, c.from_pitch, out, c.to_pitch, c.bytes, c.count);
                 });
  }
}

}  // namespace
}  // namespace tessera
