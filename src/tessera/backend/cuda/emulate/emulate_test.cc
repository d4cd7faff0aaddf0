#include "tessera/backend/cuda/emulate/emulate.h"

#include <array>
#include <cstddef>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"

namespace tessera::cuda {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr std::size_t kThreads = 8;

TEST(Emulate, RunsEveryThreadOfEveryBlock) {
  std::array<int, 3 * kThreads> runs = {};
  emulate("counts", 3, int{kThreads}, [&] {
    EXPECT_EQ(blockDim.x, 8U);
    EXPECT_EQ(gridDim.x, 3U);
    ++runs[blockIdx.x * blockDim.x + threadIdx.x];
  });
  EXPECT_THAT(runs, Each(1));
}

// What others wrote before a barrier is there behind it, in either order of threads.
TEST(Emulate, BarriersOrderThreads) {
  for (const ThreadOrder order : {ThreadOrder::kForward, ThreadOrder::kBackward}) {
    set_thread_order(order);
    std::array<unsigned, kThreads> written = {};
    std::array<unsigned, kThreads> read = {};
    emulate("neighbours", 1, int{kThreads}, [&] {
      const unsigned self = threadIdx.x;
      written.at(self) = self + 1;
      __syncthreads();
      read.at(self) = written.at((self + 1) % kThreads) + written.at((self + 7) % kThreads);
    });
    EXPECT_EQ(read[3], 5U + 3U);
    EXPECT_EQ(read[0], 2U + 8U);
    EXPECT_EQ(read[7], 1U + 7U);
  }
  set_thread_order(ThreadOrder::kForward);
}

TEST(Emulate, FindsABarrierThatSomeNeverReach) {
  const auto diverge = [] {
    if (threadIdx.x < 3) {
      __syncthreads();
    }
  };
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { emulate("split", 1, int{kThreads}, diverge); }),
              HasSubstr("kernel split: 5 of 8 threads end before a barrier that others wait at"));
}

// Each warp goes its own way between barriers of the block.
TEST(Emulate, LanesExchangeValues) {
  for (const ThreadOrder order : {ThreadOrder::kForward, ThreadOrder::kBackward}) {
    set_thread_order(order);
    std::array<unsigned, 64> sums = {};
    emulate("sums", 2, 64, [&] {
      const unsigned warp = threadIdx.x / 32;
      unsigned sum = threadIdx.x % 32 + 100 * warp;
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        sum += __shfl_xor_sync(0xFFFFFFFFU, sum, lanes);
      }
      for (unsigned i = 0; i < warp; ++i) {
        sum += exchange(threadIdx.x)[7];
      }
      __syncthreads();
      sums.at(threadIdx.x) = sum;
    });
    EXPECT_EQ(sums[0], 496U);
    EXPECT_EQ(sums[31], 496U);
    EXPECT_EQ(sums[32], 496U + 3200U + 39U);
    EXPECT_EQ(sums[63], 496U + 3200U + 39U);
  }
  set_thread_order(ThreadOrder::kForward);
}

TEST(Emulate, FindsAnExchangeThatSomeLanesDoNotComeTo) {
  const auto diverge = [] {
    if (threadIdx.x % 2 == 0) {
      exchange(threadIdx.x);
    } else {
      __syncthreads();
    }
  };
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { emulate("odd", 1, 64, diverge); }),
              HasSubstr("kernel odd: 16 of 32 lanes do not come to an exchange of their warp"));
}

}  // namespace
}  // namespace tessera::cuda
