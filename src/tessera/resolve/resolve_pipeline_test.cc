// From [pipeline] to a table and stages, and what is refused.

#include "tessera/resolve/resolve_pipeline.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/actions/csv.h"
#include "tessera/actions/schedules.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/models/llama/llama.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/state/test_training.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RunConfig config_of(std::int64_t pipeline, std::int64_t microbatches, const std::string& schedule) {
  RunConfig config;
  config.parallel = {.ranks = pipeline, .data = 1, .pipeline = pipeline};
  config.pipeline.schedule = schedule;
  config.train.global_batch = microbatches;
  config.data.sequence_length = 16;
  return config;
}

ModelDescription model_of(std::int64_t layers, std::int64_t vocab = 64) {
  return describe_llama(
      {.dim = 16, .layers = layers, .heads = 2, .kv_heads = 2, .ffn = 32, .vocab = vocab});
}

PlannedRun plan_of(const RunConfig& config, std::int64_t layers = 12) {
  return plan_run(config, model_of(layers), cpu_target());
}

std::string error_of_plan(const RunConfig& config, std::int64_t layers = 12) {
  return error_of(ErrorCode::kInvalidConfig, [&] { plan_of(config, layers); });
}

TEST(ResolvePipeline, MakesTheTableThatIsNamed) {
  EXPECT_FALSE(plan_of(config_of(1, 4, "1f1b")).plan.pipeline.has_value());
  for (const char* const schedule : {"zb-v", "ZBVZeroBubble"}) {
    const PlannedRun run = plan_of(config_of(4, 8, schedule));
    EXPECT_EQ(
        run.plan.pipeline->table,
        make_table(
            {.schedule = PipelineSchedule::kZbV, .ranks = 4, .chunks = 2, .microbatches = 8}));
    EXPECT_THAT(run.notes, IsEmpty());
  }
  EXPECT_THAT(plan_of(config_of(4, 4, "zb-v")).notes, ElementsAre(HasSubstr("at its best from")));
}

TEST(ResolvePipeline, SaysThatFewerMicrobatchesThanRanksLeaveRanksIdle) {
  // Of 4 ranks in 2 + 3 times 3 ticks each has work for 2 times 3.
  EXPECT_THAT(plan_of(config_of(4, 2, "1f1b")).notes,
              ElementsAre(HasSubstr("2 microbatches (train.global_batch / (data * microbatch)) for "
                                    "4 pipeline ranks, which wait 60.0 % of it")));
  EXPECT_THAT(plan_of(config_of(4, 4, "1f1b")).notes, IsEmpty());
}

TEST(ResolvePipeline, TakesTheLayersThatAreSaid) {
  RunConfig config = config_of(4, 8, "1f1b");
  config.pipeline.layers = {{4, 4, 4, 0}};
  EXPECT_THAT(plan_of(config).plan.pipeline->layers, ElementsAre(4, 4, 4, 0));
  config.pipeline.layers = {{4, 4, 4}};
  EXPECT_EQ(error_of_plan(config),
            "found 3 numbers, expected 4: one per stage of all pipeline ranks (pipeline.layers)");
  config.pipeline.layers = {{4, 4, 4, 1}};
  EXPECT_EQ(error_of_plan(config), "found 13 layers in all, the model has 12 (pipeline.layers)");
}

// A vocabulary that costs as much as some layers leaves the last rank fewer.
TEST(ResolvePipeline, SplitsLayersByCost) {
  const RunConfig config = config_of(4, 8, "1f1b");
  EXPECT_THAT(plan_of(config).plan.pipeline->layers, ElementsAre(3, 3, 3, 3));
  const PlannedRun run = plan_run(config, model_of(12, 2048), cpu_target());
  EXPECT_THAT(run.plan.pipeline->layers, ElementsAre(3, 4, 4, 1));
}

TEST(ResolvePipeline, RefusesWhatScheduleAndModelCannotDo) {
  EXPECT_EQ(error_of_plan(config_of(4, 9, "interleaved")),
            "pipeline.schedule = \"interleaved\" wants microbatches in multiples of its "
            "2 rounds, there are 9 (train.global_batch / (data * microbatch)); 8 and 10 do; "
            "\"1f1b\" takes any number (train.global_batch)");
  EXPECT_THAT(
      error_of_plan(config_of(4, 6, "dualpipe-v")),
      HasSubstr("needs at least 8 microbatches at pipeline 4, there are 6; \"zb-v\" takes 6 "
                "(bubble 7.7 %)"));
  RunConfig chunks = config_of(8, 8, "interleaved");
  chunks.pipeline.chunks = 2;
  EXPECT_THAT(error_of_plan(chunks),
              HasSubstr("16 stages, but 12 layers, an embedding and a head make at most 14: "));
  // Without a table of them all.
  EXPECT_THAT(
      error_of_plan(config_of(1'000'000'000, 8, "1f1b")),
      HasSubstr("1000000000 stages, but 12 layers, an embedding and a head make at most 14: "
                "parallel.pipeline <= 14"));
  chunks.pipeline.chunks = 2'000'000'000;
  EXPECT_THAT(error_of_plan(chunks), HasSubstr("pipeline.chunks"));
  chunks.pipeline.layers = {{12}};
  EXPECT_THAT(error_of_plan(chunks),
              HasSubstr("found 1 number, expected 16000000000: one per stage of all pipeline "
                        "ranks (pipeline.layers)"));
  RunConfig unused = config_of(4, 8, "gpipe");
  unused.pipeline.chunks = 2;
  EXPECT_THAT(
      error_of_plan(unused),
      AllOf(HasSubstr("pipeline.chunks = 2 has no effect"), EndsWith(" (pipeline.chunks)")));
  EXPECT_THAT(
      error_of_plan(config_of(4, 8, "zbx")),
      AllOf(HasSubstr("\"zbx\" is not a schedule"), EndsWith("in .csv (pipeline.schedule)")));
}

TEST(ResolvePipeline, TakesSlices) {
  RunConfig config = config_of(4, 2, "1f1b");
  config.pipeline.slices = 3;
  EXPECT_EQ(plan_of(config).plan.pipeline->table,
            make_table({.ranks = 4, .microbatches = 2, .slices = 3}));
  config.pipeline.schedule = "zb-h1";
  EXPECT_EQ(error_of_plan(config),
            "pipeline.slices = 3: pipeline.schedule = \"zb-h1\" is of whole sequences; \"1f1b\", "
            "\"gpipe\" and tables take slices (pipeline.slices)");
}

TEST(ResolvePipeline, RefusesSlicesOfWhatIsNotAddedUp) {
  RunConfig config = config_of(2, 1, "1f1b");
  config.pipeline.slices = 3;
  config.optimizer.gradients = DType::kBF16;
  EXPECT_THAT(error_of_plan(config),
              HasSubstr("pipeline.slices: found 3, with optimizer.gradients = \"bf16\""));
  config.optimizer.gradients = DType::kF32;
  config.parallel = {.ranks = 4, .data = 1, .tensor = 2, .pipeline = 2};
  EXPECT_THAT(plan_of(config).plan.pipeline->slice_lengths,
              testing::Each(testing::Truly([](std::int64_t length) { return length % 2 == 0; })));
  config.pipeline.slices = 9;
  EXPECT_EQ(error_of_plan(config),
            "pipeline.slices: found 9, but 16 tokens make at most 8 that 2 tensor ranks divide: "
            "expected that or fewer, longer sequences or parallel.sequence_parallel = false");
  config.pipeline.slices = 3;
  config.data.sequence_length = 13;
  EXPECT_EQ(error_of_plan(config),
            "pipeline.slices: found 3, but 2 tensor ranks do not divide 13 tokens: expected 1, "
            "another data.sequence_length or parallel.sequence_parallel = false");
  config.parallel.sequence_parallel = false;
  EXPECT_EQ(plan_of(config).plan.pipeline->table.slices, 3);
}

class TableFile : public testing::Test {
 protected:
  RunConfig config_with(const std::string& text) {
    write_test_file(path_, text);
    return config_of(2, 2, path_);
  }

  TestDirectory directory_;
  std::string path_ = (directory_.path() / "table.csv").string();
};

TEST_F(TableFile, IsRead) {
  const ActionTable table = make_table({.ranks = 2, .microbatches = 2});
  EXPECT_EQ(plan_of(config_with(to_csv(table))).plan.pipeline->table, table);
  const ActionTable slices = make_table({.ranks = 2, .microbatches = 2, .slices = 3});
  RunConfig sliced = config_with(to_csv(slices));
  sliced.pipeline.slices = 3;
  EXPECT_EQ(plan_of(sliced).plan.pipeline->table, slices);
  const PlannedRun falling = plan_of(config_with("0F1,0F0,0B1,0B0\n1F1,1B1,1F0,1B0\n"));
  EXPECT_THAT(falling.notes,
              testing::Contains(HasSubstr("stage 0 runs 0B0 after a later microbatch")));
  const std::string capitals = (directory_.path() / "TABLE.CSV").string();
  write_test_file(capitals, "\xEF\xBB\xBF" + to_csv(table));
  EXPECT_EQ(plan_of(config_of(2, 2, capitals)).plan.pipeline->table, table);
}

TEST_F(TableFile, ThatIsWrongSaysWhere) {
  EXPECT_THAT(error_of_plan(config_with("0F0,0F1,0B0,0B1\n1F0,0X3,1F1,1B1\n")),
              HasSubstr("table.csv:2:2: \"0X3\" is not an action"));
  EXPECT_THAT(error_of_plan(config_with("0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1B1\n")),
              HasSubstr("table.csv:2:2: stage 1 has I but no W of microbatch 0"));
  EXPECT_THAT(error_of_plan(config_with("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")),
              AllOf(HasSubstr("table.csv:1:2: the table never ends: rank 0 waits at 2:0B0 for 1B0"),
                    EndsWith(" (pipeline.schedule)")));
  EXPECT_THAT(error_of_plan(config_with("0F0,0B0\n1F0,1B0\n")),
              AllOf(HasSubstr("the run has 2 of them"), EndsWith(" (train.global_batch)")));
  EXPECT_THAT(error_of_plan(config_with("0F0,0F1,0B0,0B1\n")),
              AllOf(HasSubstr("parallel.pipeline = 2"), EndsWith(" (parallel.pipeline)")));
  RunConfig sliced = config_with("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  sliced.pipeline.slices = 2;
  EXPECT_THAT(error_of_plan(sliced),
              AllOf(HasSubstr("pipeline.slices: found 2, but pipeline.schedule = "),
                    HasSubstr("is a table of whole sequences")));
  RunConfig chunks = config_with("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  chunks.pipeline.chunks = 1;
  EXPECT_THAT(error_of_plan(chunks), HasSubstr("pipeline.chunks: found 1, but pipeline.schedule"));
  EXPECT_THAT(
      error_of(ErrorCode::kInvalidData, [&] { plan_of(config_of(2, 2, "/nowhere/t.csv")); }),
      HasSubstr("/nowhere/t.csv"));
}

}  // namespace
}  // namespace tessera
