#include "tessera/resolve/whole_training.h"

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/config/config.h"

namespace tessera {
namespace {

// 8 sequences of 8 tokens a step.
Explanation facts(const std::string& checkpoint) {
  return explain(parse_run_config(
      format("[model]\ndim = 8\nlayers = 1\nheads = 2\nkv_heads = 1\nffn = 16\nvocab = 300\n"
             "[data]\nsequence_length = 8\n[train]\nglobal_batch = 8\nmicrobatch = 1\n"
             "[parallel]\nranks = 4\n[checkpoint]\n{}\n",
             checkpoint),
      "run.toml"));
}

TEST(WholeTraining, CountsHoursAndCheckpoints) {
  Cluster cluster;
  cluster.device_hour_usd = 2.0;
  cluster.storage_bandwidth = 1e6;
  // 1,000 steps at two a second.
  const WholeTraining training = whole_training(facts("every = 100"), cluster, 64e3, 128.0);
  EXPECT_DOUBLE_EQ(training.seconds, 500.0);
  EXPECT_DOUBLE_EQ(training.device_hours, 4.0 * 500 / 3600);
  EXPECT_DOUBLE_EQ(training.usd, 8.0 * 500 / 3600);
  EXPECT_EQ(training.num_checkpoints, 10);
  // Weights and two moments in f32. Embedding and head have 2 * 300 rows of 8, the layer's four
  // products of attention 64 + 32 + 32 + 64 and its three others 8 * 16 each, three norms 8 each.
  constexpr std::int64_t kParameters = 4800 + 192 + 384 + 24;
  EXPECT_EQ(training.checkpoint_bytes, 12 * kParameters);
  EXPECT_DOUBLE_EQ(training.seconds_of_checkpoint, 12e-6 * static_cast<double>(kParameters));
}

TEST(WholeTraining, SavesByTime) {
  const Cluster cluster;
  const auto count = [&](const std::string& checkpoint, double seconds) {
    return whole_training(facts(checkpoint), cluster, 64e3, 64e3 / seconds).num_checkpoints;
  };
  EXPECT_EQ(count("", 3600.0), 4);  // every quarter of an hour
  EXPECT_EQ(count("every_minutes = 10", 3600.0), 6);
  EXPECT_EQ(count("every_minutes = 10", 3601.0), 7);
  EXPECT_EQ(count("every_minutes = 0", 3600.0), 1);
  EXPECT_EQ(count("every = 500\nevery_minutes = 10", 3600.0), 6);
  EXPECT_EQ(whole_training(facts(""), cluster, 64e3, 1.0).seconds_of_checkpoint, 0.0);
  EXPECT_EQ(whole_training(facts(""), cluster, 64e3, 1.0).usd, 0.0);
}

}  // namespace
}  // namespace tessera
