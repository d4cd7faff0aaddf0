// What the trainer does at the edges of a step, on a device whose memory is not the host's.

#include <cstdint>
#include <memory>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/test_far_backend.h"
#include "tessera/base/test_directory.h"
#include "tessera/train/test_training.h"

namespace tessera {
namespace {

class DeviceMemory : public testing::TestWithParam<DType> {};

TEST_P(DeviceMemory, ChangesNothing) {
  TestTraining near(tiny_llama(), make_cpu_backend(1), GetParam());
  TestTraining far(tiny_llama(), std::make_unique<FarBackend>(1), GetParam());
  near.initialize();
  far.initialize();
  for (int number = 1; number <= 3; ++number) {
    EXPECT_EQ(far.step(number), near.step(number)) << "step " << number;
  }
  EXPECT_EQ(far.state(), near.state());
}

TEST_P(DeviceMemory, IsFilledFromCheckpoints) {
  const TestDirectory directory;
  TestTraining first(tiny_llama(), std::make_unique<FarBackend>(1), GetParam());
  first.initialize();
  first.step(1);
  const auto path = directory.path() / "step-1";
  first.save(path);
  TestTraining second(tiny_llama(), std::make_unique<FarBackend>(1), GetParam());
  second.load(path);
  EXPECT_EQ(second.step(2), first.step(2));
  EXPECT_EQ(second.state(), first.state());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DeviceMemory, testing::Values(DType::kF32, DType::kBF16));

// A step moves what the host writes and reads of it, and no state.
TEST(FarBackend, MovesInputsAndOutputsAlone) {
  auto backend = std::make_unique<FarBackend>(1);
  const FarBackend& counts = *backend;
  TestTraining training(tiny_llama(), std::move(backend), DType::kF32);
  training.initialize();
  const std::int64_t before = counts.bytes_to_device;
  EXPECT_EQ(before, 0);  // weights are drawn there
  training.step(1);
  const std::int64_t moved = counts.bytes_to_device - before;
  EXPECT_GE(moved, 2 * 4 * 2 * 16 * 4);  // ids of two microbatches, four inputs each
  EXPECT_LT(moved, 4096);
  EXPECT_LT(counts.bytes_to_host, 1024);
}

}  // namespace
}  // namespace tessera
