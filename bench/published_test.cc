#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/csv_table.h"
#include "bench/published_defaults.h"
#include "bench/published_row.h"
#include "bench/published_run.h"
#include "bench/published_score.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::Contains;
using testing::HasSubstr;

PublishedDefaults shipped_defaults() {
  return PublishedDefaults(std::string(TESSERA_SOURCE_DIR) + "/bench/published_defaults.toml");
}

constexpr std::string_view kNames =
    "id,system,chip,gpus,gpus_per_node,intra_GBps_per_gpu,inter_GBps_per_gpu,family,model,layers,"
    "hidden,heads,kv_heads,ffn,mlp,vocab,tied,seq,global_batch,microbatch,tp,sp,cp,pp,vpp,ep,dp,"
    "state,shard_ranks,recompute,attention,compiled,dtype,grad_reduce_dtype,dropout,guess,"
    "target_step_s";

constexpr std::string_view kRow =
    "r1,TorchTitan 1,h100-700w-new,64,8,450,50,llama,llama3-8b,32,4096,32,8,14336,swiglu,128256,0,"
    "8192,64,1,2,1,1,2,2,1,16,zero3,16,full,flash,compile,bf16,fp32,,microbatch,2.5";

// The row with one cell replaced.
PublishedRow row_with(std::string_view column, std::string_view cell) {
  std::vector<std::string> names(1);
  std::vector<std::string> cells(1);
  for (const char c : kNames) {
    c == ',' ? static_cast<void>(names.emplace_back()) : names.back().push_back(c);
  }
  for (const char c : kRow) {
    c == ',' ? static_cast<void>(cells.emplace_back()) : cells.back().push_back(c);
  }
  std::string text(kNames);
  text += "\n";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    text += format("{}{}", i == 0 ? "" : ",", names[i] == column ? std::string(cell) : cells[i]);
  }
  return read_published_row(CsvTable(text + "\n", "t.csv"), 0, shipped_defaults());
}

PublishedRun run_with(std::string_view column, std::string_view cell) {
  return express(row_with(column, cell), shipped_defaults());
}

TEST(PublishedRow, HasWordsOfTheReadme) {
  const PublishedRow row = row_with("", "");
  EXPECT_EQ(row.gpus, 64);
  EXPECT_EQ(row.inter_bandwidth, 50e9);
  EXPECT_EQ(row.guesses, std::vector<std::string>({"microbatch"}));
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [] { row_with("state", "zero4"); }),
              HasSubstr("t.csv:2:28: state: found \"zero4\", expected one of ddp, zero1"));
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [] { row_with("layers", ""); }),
              HasSubstr("t.csv:2:10: layers"));
}

TEST(PublishedRow, HasDefaultsOfItsSystem) {
  const PublishedRow row = row_with("state", "");
  EXPECT_EQ(row.state, "zero3");
  EXPECT_THAT(row.assumed, Contains("state"));
  EXPECT_EQ(row_with("vpp", "").vpp, 1);
}

TEST(PublishedRun, IsKeysAndTraits) {
  const PublishedRun run = run_with("", "");
  EXPECT_EQ(run.waits, "");
  EXPECT_EQ(run.chip, "h100-dgx.toml");
  EXPECT_THAT(run.keys, Contains("--pipeline.schedule=interleaved"));
  EXPECT_THAT(run.keys, Contains("--pipeline.layers=[8, 8, 8, 8]"));
  EXPECT_THAT(run.traits, Contains("recompute=full"));
  EXPECT_THAT(run.traits, Contains("no_reshard"));
}

TEST(PublishedRun, CutsStatesOverContextRanks) {
  PublishedRow row = row_with("cp", "2");
  row.gpus = 128;
  row.shard_ranks.reset();
  const PublishedRun run = express(row, shipped_defaults());
  EXPECT_EQ(run.waits, "");
  EXPECT_THAT(run.keys, Contains("--parallel.context=2"));
  EXPECT_THAT(run.keys, Contains("--parallel.ranks=128"));
  EXPECT_THAT(run.keys, Not(Contains(HasSubstr("--state.optimizer"))));
}

TEST(PublishedRun, SaysWhatItWaitsFor) {
  EXPECT_EQ(run_with("ep", "8").waits, "experts");
  EXPECT_THAT(run_with("global_batch", "63").waits, HasSubstr("global_batch 63"));
  EXPECT_THAT(run_with("gpus", "128").waits, HasSubstr("64 ranks on 128 GPUs"));
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [] { run_with("chip", "tpu-v5"); }),
              HasSubstr("found \"tpu-v5\", expected one that begins with one of"));
}

TEST(PublishedRun, HasTheRowsLinks) {
  Cluster chip = local_cluster(8);
  chip.levels.push_back({.name = "network", .size = 4, .bandwidth = 1.0});
  chip.levels[0].bandwidth = 2.0;
  const Cluster cluster = row_cluster(row_with("shard_ranks", "8"), chip);
  // Slices of 8 of the 16 data ranks, of 2 tensor ranks each: two nodes.
  ASSERT_EQ(cluster.levels.size(), 3);
  EXPECT_EQ(cluster.levels[0].bandwidth, 450e9);
  EXPECT_EQ(cluster.levels[1].size, 2);
  EXPECT_EQ(cluster.levels[2].size, 4);
  EXPECT_EQ(cluster.levels[2].bandwidth, 50e9);
}

TEST(PublishedScore, ComparesWithOneConstant) {
  // Twice and three times the FLOP, and steps that grow by it but for the last.
  const std::array<ScoredRow, 3> rows = {
      ScoredRow{.model = "a", .target = 1.0, .predicted = 1.1, .flop = 1.0, .work = 1.0},
      ScoredRow{.model = "a", .target = 2.0, .predicted = 2.0, .flop = 2.0, .work = 1.0},
      ScoredRow{.model = "a", .target = 4.0, .predicted = 1.0, .flop = 3.0, .work = 1.0}};
  const TableScore score = score_of(rows);
  EXPECT_NEAR(score.mean, (0.1 + 0.0 + 0.75) / 3.0, 1e-12);
  EXPECT_NEAR(score.largest, 0.75, 1e-12);
  EXPECT_NEAR(score.bar, 0.25 / 3.0, 1e-12);
  // Of three pairs one is in the measured order.
  EXPECT_NEAR(*score.tau, -1.0 / 3.0, 1e-12);
  EXPECT_GT(shuffled_error(rows, 20), score.mean / 2.0);
  EXPECT_EQ(score_of({}).rows, 0);
}

}  // namespace
}  // namespace tessera
