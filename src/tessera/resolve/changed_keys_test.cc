#include "tessera/resolve/changed_keys.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ChangedKeys, AreThoseThatMayChangeBits) {
  const RunConfig before;
  RunConfig now = before;
  now.checkpoint.every = 3;
  now.sample.prompt = "x";
  now.memory.recompute = Recompute::kFull;
  now.passes.fuse = false;
  now.run.dir = "elsewhere";
  EXPECT_THAT(changed_keys(before, now, 3), IsEmpty());
  now.run.threads = 2;
  now.run.deterministic = false;
  now.run.time_gemms = false;
  now.train.tf32 = true;
  now.data.shuffle = false;
  now.data.sequence_length = 64;
  now.train.microbatch = 4;
  now.optimizer.lr = 0.5;
  now.passes.group_gemms = false;
  EXPECT_THAT(changed_keys(before, now, 3),
              ElementsAre("run.threads (0, now 2)",
                          "run.deterministic (true, now false)",
                          "run.time_gemms (true, now false)",
                          "data.sequence_length (512, now 64)",
                          "data.shuffle (true, now false)",
                          "train.microbatch (1, now 4)",
                          "train.tf32 (false, now true)",
                          "optimizer.lr (0.0008, now 0.5)",
                          "passes.group_gemms (true, now false)"));
}

// With the default schedule, which decays over the last 0.8 of the steps.
TEST(ChangedKeys, StepsCountWhereTheyChangeLearningRates) {
  RunConfig before;
  before.train.steps = 20;
  before.schedule.warmup = 4;
  before.optimizer.lr = 8e-4;
  RunConfig now = before;
  EXPECT_EQ(learning_rate_jump(before, now, 20), "");
  now.train.steps = 30;
  now.schedule.warmup = 6;  // as where nobody names one
  EXPECT_THAT(changed_keys(before, now, 20), ElementsAre("train.steps (20, now 30)"));
  // By hand: the last of 16 steps of decay; 24 steps of decay behind step 6, of which 14 are done.
  EXPECT_EQ(learning_rate_jump(before, now, 20),
            "the learning rate goes from 5e-05 at step 20 to 0.000333 at step 21");
  EXPECT_EQ(learning_rate_jump(before, now, 0), "");
  EXPECT_EQ(learning_rate_jump(before, now, 30), "") << "no step is to come";
  now.schedule.warmup = 5;
  EXPECT_THAT(changed_keys(before, now, 20),
              ElementsAre("train.steps (20, now 30)", "schedule.warmup (4, now 5)"));
  before.schedule = now.schedule = {.warmup = 4, .decay_ratio = 0};
  EXPECT_THAT(changed_keys(before, now, 20), IsEmpty());
  EXPECT_EQ(learning_rate_jump(before, now, 20), "");
  // Both are still in their warmup.
  before.schedule = now.schedule = {.warmup = 10, .decay_ratio = 0.4};
  EXPECT_THAT(changed_keys(before, now, 8), IsEmpty());
}

// Where state lies changes bits by the order of sums alone.
TEST(ChangedKeys, PlacementsCountWhereTheyChangeSums) {
  RunConfig before;
  before.parallel.ranks = 4;
  before.parallel.data = 4;
  before.train.microbatch = 2;
  before.train.global_batch = 8;
  before.state.preset = "fsdp";
  RunConfig now = before;
  now.state.preset = "ddp";
  EXPECT_THAT(changed_keys(before, now, 3), IsEmpty());
  now.state.wire_grad = "bf16";
  EXPECT_THAT(changed_keys(before, now, 3),
              ElementsAre(R"(state.preset ("fsdp", now "ddp"))",
                          R"(state.wire_grad (left out, now "bf16"))"));
  now.state.wire_grad.reset();
  before.train.global_batch = now.train.global_batch = 24;
  EXPECT_THAT(changed_keys(before, now, 3), ElementsAre(R"(state.preset ("fsdp", now "ddp"))"));
  now.state.preset = "zero2";  // reduces to the same slices
  EXPECT_THAT(changed_keys(before, now, 3), IsEmpty());
  now.parallel.tensor = 2;
  now.parallel.data = 2;
  EXPECT_THAT(changed_keys(before, now, 3), testing::SizeIs(3));
}

// How ranks share the layers changes no bit (docs/design/determinism.md, D3). Whether a table has
// microbatches in an order of its own does not show in its name.
TEST(ChangedKeys, DoNotCountAPipeline) {
  RunConfig before;
  before.parallel = {.ranks = 2, .data = 2};
  RunConfig now = before;
  now.parallel.ranks = 8;
  now.parallel.pipeline = 4;
  now.pipeline = {.schedule = "zb-v", .chunks = 2, .layers = {{2, 1, 1, 0}}};
  EXPECT_THAT(changed_keys(before, now, 3), IsEmpty());
  now.pipeline.schedule = "own.csv";
  EXPECT_THAT(changed_keys(before, now, 3), IsEmpty());
}

// Whatever they do, by the order of the sections.
TEST(ChangedKeys, AreAllOnRequest) {
  RunConfig before;
  RunConfig now = before;
  EXPECT_THAT(differing_keys(before, now), IsEmpty());
  now.train.steps = before.train.steps + 1;
  now.cluster.file = "a.toml";
  const std::vector<ChangedKey> keys = differing_keys(before, now);
  ASSERT_EQ(keys.size(), 2U);
  EXPECT_EQ(keys[0].key, "train.steps");
  EXPECT_EQ(keys[1], (ChangedKey{.key = "cluster.file", .before = "\"\"", .now = "\"a.toml\""}));
  EXPECT_THAT(all_changed_keys(before, now), testing::SizeIs(2));
}

TEST(ChangedKeys, SlicesChangeSums) {
  RunConfig before;
  before.parallel.pipeline = 2;
  RunConfig now = before;
  now.pipeline.slices = 4;
  EXPECT_THAT(changed_keys(before, now, 3), ElementsAre("pipeline.slices (1, now 4)"));
}

}  // namespace
}  // namespace tessera
