// What steps of a pipeline allocate once the first one is over.

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/actions/schedules.h"
#include "tessera/runtime/launcher.h"
#include "tests/distributed/backend_of_transfers.h"
#include "tests/distributed/count_allocations.h"
#include "tests/distributed/rank_steps.h"
#include "tests/distributed/run_ranks.h"
#include "tests/distributed/schedule_name.h"

namespace tessera {
namespace {

// Of steps two to five, on all ranks and their threads.
Allocations allocations_of(PipelineSchedule schedule, const RankSteps::Wrap& wrap) {
  constexpr std::int64_t kRanks = 2;
  const std::int64_t stages = kRanks * default_chunks(schedule);
  RankRun run = {.model = odd_llama(stages),
                 .mesh = local_mesh({.pipeline = kRanks}),
                 .microbatches = 4,
                 .global_batch = 4};
  run.pipeline = {.layers = std::vector<std::int64_t>(static_cast<std::size_t>(stages), 1),
                  .schedule = schedule};
  const std::vector<Program> programs = rank_programs(run);
  Allocations found;
  std::barrier meeting(kRanks);
  launch_ranks(kRanks, {}, [&](World& world) {
    RankSteps steps(world, run, programs[static_cast<std::size_t>(world.rank())], wrap);
    steps.step();
    meeting.arrive_and_wait();
    if (world.rank() == 0) {
      count_allocations();
    }
    meeting.arrive_and_wait();
    for (int step = 2; step <= 5; ++step) {
      steps.step();
    }
    meeting.arrive_and_wait();
    if (world.rank() == 0) {
      found = counted_allocations();
    }
    meeting.arrive_and_wait();
  });
  return found;
}

TEST(Allocations, AreCounted) {
  count_allocations();
  {
    const std::vector<int> some(3);
  }
  const std::vector<int> more(3);
  const Allocations found = counted_allocations();
  EXPECT_EQ(found.made, 2);
  EXPECT_EQ(found.freed, 1);
}

class PipelineAllocationsTest : public testing::TestWithParam<PipelineSchedule> {};

TEST_P(PipelineAllocationsTest, TheRuntimeMakesNoneAfterTheFirstStep) {
  const auto wrap = [](Backend& backend) { return std::make_unique<BackendOfTransfers>(backend); };
  EXPECT_EQ(allocations_of(GetParam(), wrap).made, 0);
}

// Kernels, libraries of products and collectives have small ones for as long as they run.
TEST_P(PipelineAllocationsTest, NoneOutlivesItsStep) {
  const Allocations found = allocations_of(GetParam(), nullptr);
  EXPECT_EQ(found.made, found.freed);
}

INSTANTIATE_TEST_SUITE_P(Schedules,
                         PipelineAllocationsTest,
                         testing::ValuesIn(kPipelineSchedules),
                         schedule_name);

}  // namespace
}  // namespace tessera
