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

}  // namespace
}  // namespace tessera::cuda
