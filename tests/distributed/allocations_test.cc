// What the steps of a run allocate once the first one is over: nothing, but for what oneDNN does
// while it executes a product.

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/actions/schedules.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/placement.h"
#include "tessera/models/test_experts.h"
#include "tessera/runtime/launcher.h"
#include "tests/distributed/count_allocations.h"
#include "tests/distributed/draw_run.h"
#include "tests/distributed/rank_steps.h"
#include "tests/distributed/run_ranks.h"
#include "tests/distributed/schedule_name.h"

namespace tessera {
namespace {

// Of steps two to five, on all ranks and their threads.
CountedAllocations allocations_of(const RankRun& run) {
  const std::vector<Program> programs = rank_programs(run);
  const std::int64_t ranks = run.mesh.num_ranks();
  CountedAllocations found;
  std::barrier meeting(ranks);
  launch_ranks(ranks, {}, [&](World& world) {
    RankSteps steps(
        world, run, programs.at(programs.size() == 1 ? 0 : static_cast<std::size_t>(world.rank())));
    steps.executor().stamp_steps();
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

void expect_none(const CountedAllocations& found) {
  EXPECT_EQ(found.own.made, 0);
  EXPECT_EQ(found.own.freed, 0);
  EXPECT_EQ(found.of_products.made, found.of_products.freed);
}

TEST(Allocations, AreCounted) {
  count_allocations();
  {
    const std::vector<int> some(3);
  }
  const std::vector<int> more(3);
  void* volatile memory = std::malloc(more.size());  // which no compiler leaves out
  std::free(memory);
  const CountedAllocations found = counted_allocations();
  EXPECT_EQ(found.own.made, 3);
  EXPECT_EQ(found.own.freed, 2);
  EXPECT_EQ(found.of_products.made, 0);
}

class PipelineAllocationsTest : public testing::TestWithParam<PipelineSchedule> {};

TEST_P(PipelineAllocationsTest, AreNoneAfterTheFirstStep) {
  constexpr std::int64_t kRanks = 2;
  const std::int64_t stages = kRanks * default_chunks(GetParam());
  RankRun run = {.model = odd_llama(stages),
                 .mesh = local_mesh({.pipeline = kRanks}),
                 .microbatches = 4,
                 .global_batch = 4};
  run.pipeline = {.layers = std::vector<std::int64_t>(static_cast<std::size_t>(stages), 1),
                  .schedule = GetParam()};
  expect_none(allocations_of(run));
}

INSTANTIATE_TEST_SUITE_P(Schedules,
                         PipelineAllocationsTest,
                         testing::ValuesIn(kPipelineSchedules),
                         schedule_name);

struct NamedRun {
  std::string name;
  RankRun run;
};

// Four data ranks on two levels.
RankRun on_levels(const char* preset_name) {
  RankRun run = {.model = odd_llama(2), .mesh = virtual_mesh(4), .microbatches = 2};
  run.global_batch = 8;
  run.placement = preset(preset_name, run.mesh).placement;
  run.overlap = true;
  return run;
}

std::vector<NamedRun> named_runs() {
  const RankRun plain = {.model = odd_llama(2), .mesh = {}, .microbatches = 2, .global_batch = 4};
  RankRun narrow = plain;
  narrow.dtype = DType::kBF16;
  narrow.moments = DType::kBF16;
  narrow.recompute = true;
  RankRun float8 = plain;
  float8.float8 = {.keep_weight_codes = true};
  RankRun rows = plain;
  rows.float8 = {.rowwise = true, .head = true};
  RankRun documents = plain;
  documents.document_length = 5;
  RankRun adapters = plain;
  adapters.other = odd_model("llama3", attention_and_feed_forward());
  RankRun slices = plain;
  slices.mesh = local_mesh({.pipeline = 2});
  slices.pipeline = {.layers = {1, 1}, .slices = 2};
  RankRun tensor = plain;
  tensor.model.kv_heads = 2;
  tensor.mesh = local_mesh({.tensor = 2});
  tensor.sequence_parallel = true;
  RankRun codes = on_levels("zeropp");
  codes.wires = {.param = {.formats = {WireFormat::kInt8}, .block = 16},
                 .secondary = {.formats = {WireFormat::kBF16, WireFormat::kInt8}, .block = 16},
                 .grad = {.formats = {WireFormat::kInt4, WireFormat::kInt8}, .block = 16},
                 .update = {.formats = {WireFormat::kInt8}, .block = 16}};
  RankRun experts = on_levels("fsdp");
  experts.other = with_experts(describe_llama(odd_llama()), 8);
  experts.mesh = make_mesh(load_cluster(virtual_cluster(4)), {.data = 4, .expert = 2});
  return {{.name = "Plain", .run = plain},
          {.name = "Bf16", .run = narrow},
          {.name = "Float8", .run = float8},
          {.name = "Float8Rowwise", .run = rows},
          {.name = "Documents", .run = documents},
          {.name = "Adapters", .run = adapters},
          {.name = "Slices", .run = slices},
          {.name = "TensorSequence", .run = tensor},
          {.name = "Ddp", .run = on_levels("ddp")},
          {.name = "Fsdp", .run = on_levels("fsdp")},
          {.name = "QuantizedWires", .run = codes},
          {.name = "Experts", .run = experts}};
}

class AllocationsTest : public testing::TestWithParam<NamedRun> {};

TEST_P(AllocationsTest, AreNoneAfterTheFirstStep) {
  expect_none(allocations_of(GetParam().run));
}

INSTANTIATE_TEST_SUITE_P(Runs,
                         AllocationsTest,
                         testing::ValuesIn(named_runs()),
                         [](const auto& test) { return test.param.name; });

class RandomAllocationsTest : public testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomAllocationsTest, AreNoneAfterTheFirstStep) {
  Draw draw(GetParam());
  RankRun run = draw_run(draw);
  run.recompute = draw.one_in(2);
  run.fuse = !draw.one_in(3);
  run.overlap = draw.one_in(2);
  SCOPED_TRACE(text(run));
  expect_none(allocations_of(run));
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomAllocationsTest, testing::Range<std::uint64_t>(0, 24));

}  // namespace
}  // namespace tessera
