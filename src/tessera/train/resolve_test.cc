#include "tessera/train/resolve.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/devices.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr const char* kTrainedOnGpus = R"(
[run]
dir = "runs/gpus"
device = "cuda"
threads = 3
[model]
name = "llama3"
flavor = "debug"
vocab = 300
[tokenizer]
path = "tokenizer.json"
[data]
files = ["corpus.txt"]
[train]
global_batch = 8
microbatch = 1
[parallel]
ranks = 4
[comm]
reduction = "native"
deadline_seconds = 5
)";

// A checkpoint of GPUs can be sampled and exported where there are none.
TEST(ResolveStored, NeedsNothingOfTheMachineThatTrained) {
  const RunConfig config = resolve_stored(kTrainedOnGpus);
  EXPECT_EQ(config.run.device, "cpu");
  EXPECT_EQ(config.comm.reduction, Reduction::kOrdered);
  EXPECT_EQ(config.parallel.ranks, 4);
  EXPECT_EQ(config.model.vocab, 300);
}

TEST(ResolveStored, NamesWhereABrokenConfigIs) {
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [] { resolve_stored("[model"); }),
              HasSubstr("the checkpoint's config:1:"));
}

constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;

Devices devices_with(const std::vector<std::int64_t>& free_gibibytes) {
  Devices devices;
  for (const std::int64_t free : free_gibibytes) {
    devices.usable.push_back({.name = "NVIDIA One",
                              .architecture = "sm_90",
                              .memory_bytes = 141 * kGibibyte,
                              .free_bytes = free * kGibibyte});
  }
  return devices;
}

// Of each device a GiB stays for CUDA and its libraries, and another one for NCCL.
TEST(DeviceMemoryLimit, IsThatOfTheDeviceThatLeavesLeast) {
  EXPECT_EQ(device_memory_limit(devices_with({140}), 1, false), 139 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({140, 80}), 2, false), 79 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({80, 140}), 2, false), 79 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({80, 140}), 2, true), 78 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({140, 80}), 1, false), 139 * kGibibyte)
      << "nobody is on the second";
}

// Ranks go round the devices.
TEST(DeviceMemoryLimit, IsShared) {
  EXPECT_EQ(device_memory_limit(devices_with({13}), 4, false), 3 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({13, 13}), 4, false), 6 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({13, 5}), 3, false), 4 * kGibibyte)
      << "two are on the first";
  EXPECT_EQ(device_memory_limit(devices_with({13, 5, 13}), 4, false), 4 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({61, 5, 61}), 5, false), 2 * kGibibyte);
}

TEST(DeviceMemoryLimit, IsNothingOnADeviceThatIsFull) {
  EXPECT_EQ(device_memory_limit(devices_with({140, 0}), 2, false), 0);
  EXPECT_EQ(device_memory_limit(devices_with({1}), 1, true), 0);
}

// A run looks at its devices more than once.
TEST(DeviceMemoryLimit, NeedsADevice) {
  Devices none;
  none.problem = "the driver sees no GPU";
  EXPECT_EQ(error_of(ErrorCode::kDeviceError, [&] { device_memory_limit(none, 1, false); }),
            "there is no GPU any more: the driver sees no GPU");
}

}  // namespace
}  // namespace tessera
