#include "tessera/passes/memory/offload_layers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/passes/memory/test_offloaded.h"
#include "tessera/program/lives.h"
#include "tessera/program/space_traffic.h"

namespace tessera {
namespace {

constexpr OffloadOptions kParameters = {.parameters = Space::kFile};
constexpr OffloadOptions kActivations = {.activations = Space::kFile};

std::int64_t peak_bytes(const Program& program, Category category) {
  for (const MemoryRow& row : memory_by_category(program)) {
    if (row.category == category) {
      return row.peak_bytes;
    }
  }
  return 0;
}

// Two layers' worth at a time, whatever the number of layers.
TEST(OffloadLayers, HoldsParametersOfTwoLayers) {
  const Program few = offloaded_step(kParameters, 4);
  const Program many = offloaded_step(kParameters, 8);
  constexpr std::int64_t kNorms = 2048;  // two of each of four layers, smaller than a page
  EXPECT_EQ(peak_bytes(few, Category::kParameter), peak_bytes(many, Category::kParameter) - kNorms);
  constexpr std::int64_t kEmbeddings = 155'648;  // in pages, two of 300 rows of 64
  EXPECT_EQ(many.file_bytes, 2 * few.file_bytes - kEmbeddings);
}

// Those alone that rules store.
TEST(OffloadLayers, StoresWhatIsMarked) {
  CompileOptions options;
  options.offload = kActivations;
  options.offload.all_activations = false;
  EXPECT_EQ(offloaded_step(options, 4).file_bytes, 0);
  options.recompute = {{.first = 0, .end = 2, .kept = RecomputeKept::kAll, .store = {"swiglu"}},
                       {.first = 2, .end = 3, .keep = {"matmul.2"}, .store = {"matmul.2"}}};
  const Program program = offloaded_step(options, 4);
  constexpr std::int64_t kRows = std::int64_t{2} * 32;
  // Of two layers the product of gate and up, of one both of these.
  constexpr std::int64_t kBytes = kRows * (2 * 160 + 2 * 160) * 4;
  EXPECT_EQ(space_traffic(program, Space::kFile),
            (SpaceTraffic{.fetched = kBytes, .stored = kBytes}));
  for (const Buffer& buffer : program.buffers) {
    EXPECT_FALSE(buffer.leaves);
  }
}

// Slices of data ranks, which gathers on another stream read: in forward as many at a time, too.
TEST(OffloadLayers, HoldsSlicesOfFewLayers) {
  const auto step = [](std::int64_t layers) {
    CompileOptions options;
    options.offload = kParameters;
    options.overlap = true;
    options.update.state.axes = {{"data", 2}};
    options.update.state.param = options.update.state.secondary = 1;
    options.update.state.grad = options.update.state.optimizer = 1;
    return offloaded_step(options, layers);
  };
  const auto fetched_at_once = [](const Program& program) {
    std::int64_t most = 0;
    std::int64_t now = 0;
    for_each_life_event(program, [&](const LifeEvent& event) {
      const Buffer& buffer = program[event.of.buffer];
      if (buffer.name.starts_with("fetched ")) {
        now += event.is_end ? -buffer.bytes : buffer.bytes;
        most = std::max(most, now);
      }
    });
    return most;
  };
  EXPECT_GT(fetched_at_once(step(8)), 0);
  EXPECT_EQ(fetched_at_once(step(8)), fetched_at_once(step(16)));
}

// Each is fetched for forward and for backward, and stored and fetched once by the update.
TEST(OffloadLayers, FetchesParametersForEachPass) {
  const Program program = offloaded_step(kParameters);
  std::map<std::string, std::map<Action, std::int64_t>> fetched;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      if (is_a<FetchAttrs>(instruction)) {
        for (const TensorRef& operand : instruction.operands) {
          fetched[program[operand.buffer].name][segment.code.action] += operand.type.num_bytes();
        }
      }
    }
  }
  for (const Buffer& buffer : program.buffers) {
    if (buffer.space == Space::kFile) {
      SCOPED_TRACE(buffer.name);
      const auto& of = fetched.at(buffer.name);
      EXPECT_EQ(of.at(Action::kForward), buffer.bytes);
      EXPECT_EQ(of.at(Action::kUpdate), buffer.bytes);
      // Those of layers: the head's gradients are made in forward.
      EXPECT_EQ(of.contains(Action::kBackward), buffer.name.starts_with("layers."));
    }
  }
}

// What backward reads first would be fetched as soon as it is stored.
TEST(OffloadLayers, LeavesTheLastLayerWhereItIs) {
  for (const std::int64_t microbatches : {1, 3}) {
    CompileOptions options;
    options.offload = kActivations;
    options.update.num_microbatches = microbatches;
    const Program program = offloaded_step(options, 3);
    std::set<std::int32_t> stored;  // by the layers that made it
    for (const Segment& segment : program.segments) {
      std::map<BufferId, std::int32_t> makers;
      for (const Instruction& instruction : segment.instructions) {
        for (const TensorRef& result : instruction.results) {
          makers.emplace(result.buffer, instruction.layer);
        }
        if (is_a<StoreAttrs>(instruction)) {
          stored.insert(makers.at(instruction.operands.front().buffer));
        }
      }
    }
    EXPECT_THAT(stored, testing::AllOf(testing::Contains(0), testing::Contains(1)));
    EXPECT_THAT(stored, testing::Not(testing::Contains(2)));
  }
}

TEST(OffloadLayers, ActivationsLeaveTheDevice) {
  const Program here = offloaded_step(OffloadOptions(), 8);
  const Program there = offloaded_step(kActivations, 8);
  EXPECT_LT(peak_bytes(there, Category::kActivation), peak_bytes(here, Category::kActivation) / 2);
  const SpaceTraffic traffic = space_traffic(there, Space::kFile);
  EXPECT_EQ(traffic.fetched, traffic.stored);
  EXPECT_GT(traffic.stored, peak_bytes(here, Category::kActivation) / 2);
  EXPECT_GE(traffic.stored, there.file_bytes);
}

TEST(OffloadLayers, NoWaitIsIdle) {
  for (const OffloadOptions& offload :
       {kParameters,
        kActivations,
        OffloadOptions{
            .optimizer = Space::kHost, .parameters = Space::kFile, .activations = Space::kHost}}) {
    const Program program = offloaded_step(offload);
    const WaitsLeftOut fetches = leave_out_waits<FetchAttrs>(program);
    EXPECT_EQ(fetches.tried, fetches.refused);
    EXPECT_GE(fetches.tried, 2);
    // Memory that nothing takes next needs no wait; some is taken.
    if (offload.activations != Space::kDevice) {
      EXPECT_GT(leave_out_waits<StoreAttrs>(program).refused, 0);
    }
  }
}

}  // namespace
}  // namespace tessera
