// Over what stands for CUDA's runtime: what is copied arrives whole, whatever the sizes.

#include "tessera/backend/cuda/device/staging.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/cuda/stand_in/stand_in_runtime.h"

namespace tessera::cuda {
namespace {

constexpr std::size_t kBuffer = 1024;
constexpr std::size_t kDevice = 20 * kBuffer;

std::vector<std::byte> pattern(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::byte> values(bytes);
  for (std::byte& value : values) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<std::byte>(seed >> 24U);
  }
  return values;
}

// A device that is slower than the host, so that a buffer that is used too early is found out.
class StagingTest : public testing::Test {
 protected:
  void slow_down() {
    stream_.give([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  }

  CUstream_st stream_ = CUstream_st(0);
  Staging staging_ = Staging(&stream_, kBuffer);
  std::vector<std::byte> device_ = std::vector<std::byte>(kDevice);
};

TEST_F(StagingTest, CopiesArriveWhole) {
  std::vector<std::byte> expected = device_;
  std::uint32_t seed = 1;
  for (const std::size_t bytes : {1, 255, 256, 300, 1000, 1024, 1025, 2048, 3000, 10'000, 20'480}) {
    for (const std::size_t place : {std::size_t{0}, (kDevice - bytes) / 2, kDevice - bytes}) {
      std::vector<std::byte> given = pattern(bytes, ++seed);
      slow_down();
      staging_.to_device(device_.data() + place, given.data(), bytes);
      std::ranges::copy(given, expected.begin() + static_cast<std::ptrdiff_t>(place));
      std::ranges::fill(given, std::byte{0});  // which it may be at once
    }
    std::vector<std::byte> found(kDevice);
    slow_down();
    staging_.to_host(found.data(), device_.data(), kDevice);
    EXPECT_EQ(found, expected) << bytes;
    std::vector<std::byte> part(bytes);
    staging_.to_host(part.data(), device_.data() + 7, bytes - 1);
    EXPECT_TRUE(std::equal(part.begin(), part.end() - 1, expected.begin() + 7)) << bytes;
  }
}

TEST(Staging, PinsNoMoreThanIsCopied) {
  EXPECT_EQ(Staging::buffer_bytes_for(0), 4096U);
  EXPECT_EQ(Staging::buffer_bytes_for(4097), 8192U);
  EXPECT_EQ(Staging::buffer_bytes_for(std::size_t{1} << 40U), Staging::kBufferBytes);
}

}  // namespace
}  // namespace tessera::cuda
