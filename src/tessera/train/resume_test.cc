#include "tessera/train/resume.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
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

class TokenizerOfACheckpoint : public testing::Test {
 protected:
  TokenizerOfACheckpoint() {
    std::filesystem::create_directories(checkpoint_);
    write_test_file(other_, "other");
  }

  TestDirectory directory_;
  std::filesystem::path run_ = std::filesystem::canonical(directory_.path()) / "run";
  std::filesystem::path checkpoint_ = run_ / "checkpoints" / "step-00000004";
  std::filesystem::path other_ = directory_.path() / "other.json";
};

TEST_F(TokenizerOfACheckpoint, LiesInItsRunDirectory) {
  EXPECT_EQ(checkpoint_tokenizer(checkpoint_, other_), other_) << "there is no copy";
  write_test_file(tokenizer_copy(run_), "own");
  EXPECT_EQ(checkpoint_tokenizer(checkpoint_, other_), run_ / "tokenizer.json");
  EXPECT_EQ(checkpoint_tokenizer(checkpoint_ / "", other_), run_ / "tokenizer.json");
  write_test_file(tokenizer_copy(checkpoint_), "own");
  EXPECT_EQ(checkpoint_tokenizer(checkpoint_, other_), run_ / "tokenizer.json");
}

// As where it was moved beside another run, or another run's tokenizer was put there.
TEST_F(TokenizerOfACheckpoint, IsItsOwnBesideAnother) {
  write_test_file(tokenizer_copy(run_), "another");
  write_test_file(tokenizer_copy(checkpoint_), "own");
  EXPECT_EQ(checkpoint_tokenizer(checkpoint_, other_), tokenizer_copy(checkpoint_));
  std::filesystem::remove(tokenizer_copy(run_));
  EXPECT_EQ(checkpoint_tokenizer(checkpoint_, other_), tokenizer_copy(checkpoint_));
}

TEST_F(TokenizerOfACheckpoint, IsTheOnlyOne) {
  write_test_file(tokenizer_copy(run_), "own");
  const CheckpointMeta meta{.tokenizer = tokenizer_checksum(tokenizer_copy(run_))};
  require_tokenizer(tokenizer_copy(run_), checkpoint_, meta);
  require_tokenizer(other_, checkpoint_, {});
  try {
    require_tokenizer(other_, checkpoint_, meta);
    FAIL() << "another tokenizer is taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr(other_.string() + " is not the tokenizer that " +
                                checkpoint_.string() + " was trained with"),
                      HasSubstr(meta.tokenizer),
                      HasSubstr("; that one is " + tokenizer_copy(run_).string())));
  }
}

}  // namespace
}  // namespace tessera
