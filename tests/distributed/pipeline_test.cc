// Ranks that do a model's layers one after the other train it bit by bit as one rank does.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/actions/csv.h"
#include "tessera/base/format.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/ops/all_ops.h"
#include "tessera/program/step_traffic.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/rank_steps.h"
#include "tests/distributed/run_ranks.h"
#include "tests/distributed/schedule_name.h"

namespace tessera {
namespace {

// Of several documents in a sequence, which each stage must tell apart.
RankRun base_run(std::int64_t microbatches) {
  return {.model = odd_llama(4),
          .mesh = local_mesh({}),
          .microbatches = microbatches,
          .global_batch = 2 * microbatches,
          .sequence_length = 8,
          .document_length = 3,
          .steps = 4};
}

TEST(Pipeline, TrainsAsOneRankDoes) {
  for (const std::int64_t microbatches : {1, 2, 5}) {
    const RankRun alone = base_run(microbatches);
    const RankResult expected = run_ranks(alone);
    RankRun whole = alone;
    whole.document_length = 0;
    EXPECT_NE(run_ranks(whole).losses, expected.losses);
    for (const std::vector<std::int64_t>& layers :
         {std::vector<std::int64_t>{2, 2}, {1, 2, 1}, {2, 1, 1, 0}, {0, 4}}) {
      for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
        RankRun run = alone;
        run.mesh = local_mesh({.pipeline = std::ssize(layers)});
        run.pipeline = {.layers = layers, .schedule = schedule};
        expect_equal(
            run_ranks(run),
            expected,
            format("{} ranks, {} microbatches, {}", layers.size(), microbatches, name(schedule)));
      }
    }
  }
}

// How many microbatches a schedule takes at this number of ranks: fewer than ranks, an odd number,
// and several rounds.
std::vector<std::int64_t> microbatches_of(PipelineSchedule schedule, std::int64_t ranks) {
  if (schedule == PipelineSchedule::kInterleaved || schedule == PipelineSchedule::kInterleavedZb) {
    return {1, 2 * ranks - 1, 2 * ranks};
  }
  if (schedule == PipelineSchedule::kDualPipeV) {
    return {2 * ranks, 2 * ranks + 1};
  }
  return {1, 2 * ranks + 1};
}

// Of four layers. In the longer ones stages have none.
std::vector<std::int64_t> layers_of(std::int64_t stages) {
  const std::map<std::int64_t, std::vector<std::int64_t>> layers = {{2, {3, 1}},
                                                                    {3, {1, 2, 1}},
                                                                    {4, {2, 1, 1, 0}},
                                                                    {6, {1, 0, 1, 0, 2, 0}},
                                                                    {8, {0, 1, 1, 0, 0, 1, 1, 0}}};
  return layers.at(stages);
}

class PipelineScheduleTest : public testing::TestWithParam<PipelineSchedule> {};

TEST_P(PipelineScheduleTest, TrainsAsOneRankDoes) {
  for (const std::int64_t ranks : {2, 3, 4}) {
    for (const std::int64_t microbatches : microbatches_of(GetParam(), ranks)) {
      const RankRun alone = base_run(microbatches);
      RankRun run = alone;
      run.mesh = local_mesh({.pipeline = ranks});
      run.pipeline = {.layers = layers_of(ranks * default_chunks(GetParam())),
                      .schedule = GetParam()};
      expect_equal(run_ranks(run),
                   run_ranks(alone),
                   format("{} ranks, {} microbatches", ranks, microbatches));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules,
                         PipelineScheduleTest,
                         testing::ValuesIn(kPipelineSchedules),
                         schedule_name);

// Codes and their scales are those of a microbatch, whatever the ranks.
TEST(Pipeline, TrainsIn8BitFloats) {
  RankRun exact = base_run(4);
  exact.steps = 3;
  const std::vector<float> exact_losses = run_ranks(exact).losses;
  for (const Float8Options& options : {Float8Options{.keep_weight_codes = true},
                                       {.rowwise = true, .head = true, .keep_weight_codes = true},
                                       {.keep_weight_codes = false}}) {
    RankRun alone = exact;
    alone.float8 = options;
    const RankResult expected = run_ranks(alone);
    EXPECT_NE(expected.losses, exact_losses);
    for (const PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZbV}) {
      RankRun run = alone;
      run.mesh = local_mesh({.pipeline = 2});
      run.pipeline = {.layers = layers_of(2 * default_chunks(schedule)), .schedule = schedule};
      expect_equal(run_ranks(run),
                   expected,
                   format("{}{}{}",
                          name(schedule),
                          options.rowwise ? ", rowwise" : "",
                          options.keep_weight_codes ? ", codes kept" : ""));
    }
  }
}

// Each rank of the pipeline is several, with placements, overlap and recompute of their own, which
// takes turns.
TEST(Pipeline, TrainsAsDataAndTensorRanksDo) {
  int turn = 0;
  for (const std::int64_t tensor : {1, 2}) {
    for (const char* const placement : {"ddp", "zero1", "fsdp"}) {
      for (const bool overlap : {false, true}) {
        const bool recompute = ++turn % 4 < 2;  // by pairs: with overlap or without
        RankRun alone = base_run(3);
        alone.model.kv_heads = 2;
        alone.global_batch = 12;
        alone.mesh = local_mesh({.data = 2, .tensor = tensor});
        alone.placement = preset(placement, alone.mesh).placement;
        alone.sequence_parallel = tensor > 1;
        alone.overlap = overlap;
        alone.recompute = recompute;
        RankRun run = alone;
        run.mesh = local_mesh({.data = 2, .tensor = tensor, .pipeline = 2});
        run.pipeline = {.layers = {3, 1}};
        expect_equal(run_ranks(run),
                     run_ranks(alone),
                     format("tensor {}, {}{}", tensor, placement, overlap ? ", overlap" : ""));
      }
    }
  }
}

// Parameters in slices of an inner level, gradients summed over both.
TEST(Pipeline, TrainsAsDataRanksOfTwoLevelsDo) {
  RankRun alone = base_run(2);
  alone.global_batch = 8;
  alone.steps = 3;
  alone.mesh = make_mesh(test_cluster({2, 2}), {.data = 4});
  alone.placement = preset("hsdp@pair", alone.mesh).placement;
  const RankResult expected = run_ranks(alone);
  for (const PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZbV}) {
    RankRun run = alone;
    run.overlap = schedule == PipelineSchedule::kZbV;
    run.recompute = schedule == PipelineSchedule::k1F1B;
    run.mesh = make_mesh(test_cluster({2, 2, 2}), {.data = 4, .pipeline = 2});
    run.pipeline = {.layers = layers_of(2 * default_chunks(schedule)), .schedule = schedule};
    expect_equal(run_ranks(run), expected, std::string(name(schedule)));
  }
}

// Whether a value that was gathered before backward ended is kept for weight gradients alone.
bool keeps_gathered_for_weights(const Program& program) {
  std::map<BufferId, std::int64_t> readers;  // in backward, of what was gathered there
  for (const Segment& segment : program.segments) {
    if (segment.code.action != Action::kBackward) {
      continue;
    }
    for (const Instruction& instruction : segment.instructions) {
      if (instruction.op->get_if<AllGatherAttrs>() != nullptr) {
        readers.try_emplace(instruction.results[0].buffer, 0);
      }
      for (const TensorRef& operand : instruction.operands) {
        if (const auto found = readers.find(operand.buffer); found != readers.end()) {
          ++found->second;
        }
      }
    }
  }
  return std::ranges::any_of(readers, [&](const auto& gathered) {
    return gathered.second == 0 &&
           program[gathered.first].end.code.action == Action::kWeightGradient;
  });
}

// Tensor ranks gather what weight gradients alone read where these are made.
TEST(Pipeline, SplitsTheBackwardOfTensorRanks) {
  RankRun alone = base_run(4);
  alone.model.kv_heads = 2;
  alone.mesh = local_mesh({.tensor = 2});
  alone.sequence_parallel = true;
  const RankResult expected = run_ranks(alone);
  for (const PipelineSchedule schedule :
       {PipelineSchedule::kZbH1, PipelineSchedule::kInterleavedZb, PipelineSchedule::kZbV}) {
    RankRun run = alone;
    run.mesh = local_mesh({.tensor = 2, .pipeline = 2});
    run.pipeline = {.layers = layers_of(2 * default_chunks(schedule)), .schedule = schedule};
    expect_equal(run_ranks(run), expected, std::string(name(schedule)));
    for (const std::int64_t rank : {0, 2}) {
      EXPECT_FALSE(keeps_gathered_for_weights(rank_program(run, {}, rank))) << name(schedule);
    }
  }
}

// What all ranks send of parameters and gradients in a step.
std::int64_t state_bytes(const RankRun& run) {
  Traffic sum;
  const std::vector<Program> programs = rank_programs(run);
  for (const Program& program : programs) {
    add(sum, step_traffic(program));
  }
  return sum["data"][static_cast<std::size_t>(TrafficClass::kState)] * run.mesh.num_ranks() /
         std::ssize(programs);
}

// Every schedule of two ranks, and a table whose backwards are in two parts, but for the last one.
std::vector<PipelineRun> two_ranks() {
  std::vector<PipelineRun> runs;
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    runs.push_back({.layers = default_chunks(schedule) == 1 ? std::vector<std::int64_t>{2, 2}
                                                            : std::vector<std::int64_t>{2, 0, 1, 1},
                    .schedule = schedule});
  }
  const char* const last_is_whole =
      "0F0,0F1,0I0,0F2,0W0,0I1,0F3,0W1,0I2,0W2,0B3\n"
      "1F0,1I0,1F1,1W0,1I1,1W1,1F2,1I2,1W2,1F3,1B3\n";
  runs.push_back({.layers = {2, 2}, .table = parse_table(last_is_whole, "last").table});
  return runs;
}

// Every chunk gathers once for each of its forwards and backwards, and reduces as often as ranks do
// that have all layers. What is sent is compared in all, what is computed in every other one.
TEST(Pipeline, SendsOfStatesWhatOneRankSends) {
  int turn = 0;
  for (const char* const placement : {"ddp", "zero1", "zero2", "fsdp"}) {
    for (const bool overlap : {false, true}) {
      RankRun alone = base_run(4);
      alone.global_batch = 16;
      alone.steps = 2;
      alone.mesh = local_mesh({.data = 2});
      alone.placement = preset(placement, alone.mesh).placement;
      alone.overlap = overlap;
      const RankResult expected = run_ranks(alone);
      const std::int64_t sent = state_bytes(alone);
      EXPECT_GT(sent, 0);
      for (const PipelineRun& pipeline : two_ranks()) {
        RankRun run = alone;
        run.mesh = local_mesh({.data = 2, .pipeline = 2});
        run.pipeline = pipeline;
        const std::string what = format("{}{}, {}{}",
                                        name(pipeline.schedule),
                                        pipeline.table ? " (a table)" : "",
                                        placement,
                                        overlap ? ", overlap" : "");
        EXPECT_EQ(state_bytes(run), sent) << what;
        if (turn++ % 2 == 0) {
          expect_equal(run_ranks(run), expected, what);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
