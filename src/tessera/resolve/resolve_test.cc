#include "tessera/resolve/resolve.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/devices.h"
#include "tessera/base/test_error.h"
#include "tessera/plan/run_layout.h"

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

// Of each device a GiB stays for CUDA and its libraries.
// As in a run file that does not name it; what a program did set stays, and is refused.
TEST(Resolve, TheUsualWarmupGivesWayInAConfigOfAProgram) {
  RunConfig config;
  config.run.dir = "run";
  config.model.flavor = "debug";
  config.tokenizer.path = "tokenizer.json";
  config.data.files = {"a.txt"};
  config.train.steps = 5;
  config.schedule.decay_ratio = 0.4;
  EXPECT_EQ(resolve(config).schedule.warmup, 3);
  config.train.steps = 500;
  EXPECT_EQ(resolve(config).schedule.warmup, 10);
  config.train.steps = 5;
  config.schedule.warmup = 4;
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { resolve(config); }),
              HasSubstr("schedule.warmup: found 4, expected at most 3"));
}

TEST(DeviceMemoryLimit, IsThatOfTheDeviceThatLeavesLeast) {
  EXPECT_EQ(device_memory_limit(devices_with({140}), 1, 0), 139 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({140, 80}), 2, 0), 79 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({80, 140}), 2, 0), 79 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({80, 140}), 2, kGibibyte), 78 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({140, 80}), 1, 0), 139 * kGibibyte)
      << "nobody is on the second";
}

// Ranks go round the devices.
TEST(DeviceMemoryLimit, IsShared) {
  EXPECT_EQ(device_memory_limit(devices_with({13}), 4, 0), 3 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({13, 13}), 4, 0), 6 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({13, 5}), 3, 0), 4 * kGibibyte)
      << "two are on the first";
  EXPECT_EQ(device_memory_limit(devices_with({13, 5, 13}), 4, 0), 4 * kGibibyte);
  EXPECT_EQ(device_memory_limit(devices_with({61, 5, 61}), 5, 0), 2 * kGibibyte);
}

TEST(DeviceMemoryLimit, IsNothingOnADeviceThatIsFull) {
  EXPECT_EQ(device_memory_limit(devices_with({140, 0}), 2, 0), 0);
  EXPECT_EQ(device_memory_limit(devices_with({1}), 1, kGibibyte), 0);
}

// 32 channels of 12 MiB for each peer, beside 256 MiB for all groups.
TEST(NcclReserve, GrowsWithGroupsAndPeers) {
  constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
  constexpr std::int64_t kPeer = kMebibyte * 32 * 12;
  constexpr std::int64_t kAll = 256 * kMebibyte;
  RunLayout layout;
  EXPECT_EQ(nccl_reserve_bytes(layout, true, 0), kAll);
  const MeshAxis data = {.name = "data", .group = AxisGroup::kData, .size = 2, .level = "node"};
  layout.mesh.axes = {data};
  EXPECT_EQ(nccl_reserve_bytes(layout, false, 0), kAll + kPeer);
  EXPECT_EQ(nccl_reserve_bytes(layout, true, 0), kAll + 2 * kPeer) << "a group for each stream";
  layout.mesh.axes[0].size = 8;
  EXPECT_EQ(nccl_reserve_bytes(layout, false, 0), kAll + 2 * kPeer) << "neighbours alone";
  layout.mesh.axes.push_back(
      {.name = "tensor", .group = AxisGroup::kTensor, .size = 4, .level = "node"});
  EXPECT_EQ(nccl_reserve_bytes(layout, true, 0), kAll + 8 * kPeer);
  layout.wires.grad.formats = {WireFormat::kInt8};
  EXPECT_EQ(nccl_reserve_bytes(layout, false, 0), kAll + (4 + 7) * kPeer)
      << "seven to exchange with";
  EXPECT_EQ(nccl_reserve_bytes(layout, false, 3), kAll + (4 + 7 + 3) * kPeer) << "three channels";
}

// Heads are exchanged with all context ranks, by the stream that computes; gathers go round a ring.
TEST(NcclReserve, HasThePeersOfExchangedHeads) {
  constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
  constexpr std::int64_t kPeer = kMebibyte * 32 * 12;
  constexpr std::int64_t kAll = 256 * kMebibyte;
  RunLayout layout;
  layout.mesh.axes = {
      {.name = "context", .group = AxisGroup::kContext, .size = 8, .level = "node"}};
  EXPECT_EQ(nccl_reserve_bytes(layout, true, 0), kAll + 4 * kPeer);
  layout.context.kind = ContextKind::kUlysses;
  EXPECT_EQ(nccl_reserve_bytes(layout, true, 0), kAll + (4 + 7) * kPeer);
  layout.context.kind = ContextKind::kRing;
  EXPECT_EQ(nccl_reserve_bytes(layout, true, 0), kAll + (4 + 2 * 2) * kPeer) << "neighbours";
}

// Over a network 4 channels of 20 MiB for each of those that a rank exchanges with.
TEST(NcclReserve, IsLessForPeersOfOtherNodes) {
  constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
  constexpr std::int64_t kNeighbour = kMebibyte * 32 * 12;
  constexpr std::int64_t kFarPeer = kMebibyte * 4 * 20;
  constexpr std::int64_t kAll = 256 * kMebibyte;
  RunLayout layout;
  layout.mesh.levels = {"node", "cluster"};
  layout.mesh.axes = {
      {.name = "data", .group = AxisGroup::kData, .size = 48, .stride = 8, .level = "cluster"}};
  EXPECT_EQ(nccl_reserve_bytes(layout, false, 0), kAll + 2 * kNeighbour);
  layout.wires.grad.formats = {WireFormat::kBF16};
  EXPECT_EQ(nccl_reserve_bytes(layout, false, 0), kAll + 2 * kNeighbour + 47 * kFarPeer);
  layout.mesh.axes = {
      {.name = "pipeline", .group = AxisGroup::kPipeline, .size = 2, .level = "cluster"}};
  EXPECT_EQ(nccl_reserve_bytes(layout, false, 3), kAll + kNeighbour + 3 * kFarPeer);
  layout.mesh.axes[0].level = "node";
  EXPECT_EQ(nccl_reserve_bytes(layout, false, 3), kAll + kNeighbour + 3 * kNeighbour);
  layout.mesh.levels = {"pair", "node", "cluster"};
  EXPECT_EQ(nccl_reserve_bytes(layout, false, 3), kAll + kNeighbour + 3 * kNeighbour)
      << "of one machine";
}

// A run looks at its devices more than once.
TEST(DeviceMemoryLimit, NeedsADevice) {
  Devices none;
  none.problem = "the driver sees no GPU";
  EXPECT_EQ(error_of(ErrorCode::kDeviceError, [&] { device_memory_limit(none, 1, 0); }),
            "there is no GPU any more: the driver sees no GPU");
}

}  // namespace
}  // namespace tessera
