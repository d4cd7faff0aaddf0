// What signals ask of a run: to stop, or to save and go on.

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

// Enough steps that a program cannot end while its output is not read (see Process).
constexpr const char* kSteps = "--train.steps=200";
constexpr const char* kNoSaves = "--checkpoint.every=0";

class SignalsTest : public TrainingTest {
 protected:
  // Asks a run for a save, kills it once that is there, and starts it again: it goes on from there.
  void expect_saved(const std::vector<std::string>& overrides) const {
    Process process = start_training("a", overrides);
    ASSERT_TRUE(process.wait_for("\nstep 5/200"));
    process.send(SIGUSR1);
    ASSERT_TRUE(process.wait_for("the last good checkpoint is "));
    process.send(SIGKILL);
    const Outcome killed = process.finish();
    ASSERT_EQ(killed.code, 128 + SIGKILL) << "it went on";
    EXPECT_THAT(killed.err, HasSubstr("saving after this step; the run goes on\n"));
    const std::filesystem::path saved = checkpoint("a");
    EXPECT_THAT(killed.err, HasSubstr(saved.filename().string()));
    const Outcome resumed = train("a", overrides);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_THAT(resumed.err, ContainsRegex("resuming from .*" + saved.filename().string()));
    ASSERT_EQ(train("b", overrides).code, 0);
    expect_same_training("a", "b");
  }

  void expect_stopped(const std::vector<int>& signals) const {
    Process process = start_training("a", {kSteps, kNoSaves});
    ASSERT_TRUE(process.wait_for("\nstep 5/200"));
    for (const int signal : signals) {
      process.send(signal);
    }
    const Outcome stopped = process.finish();
    ASSERT_EQ(stopped.code, 0) << stopped.err;
    EXPECT_THAT(metrics("a"), SizeIs(CheckpointReader(checkpoint("a")).meta().step));
    EXPECT_THAT(stopped.err,
                AllOf(HasSubstr("stopping: finishing this step, then saving"),
                      HasSubstr("the same command goes on from there")));
  }
};

// What Slurm sends within milliseconds at a job's time limit, and at a warning before it.
TEST_F(SignalsTest, ATimeLimitSaves) {
  expect_stopped({SIGTERM, SIGCONT, SIGTERM});
}

TEST_F(SignalsTest, AWarningOfATimeLimitSaves) {
  expect_stopped({SIGUSR2, SIGTERM, SIGCONT, SIGTERM});
}

TEST_F(SignalsTest, Sigusr1SavesAndTheRunGoesOn) {
  expect_saved({kSteps, kNoSaves});
}

TEST_F(SignalsTest, Sigusr1IsForAllRanks) {
  expect_saved({kSteps, kNoSaves, "--parallel.ranks=2", "--train.microbatch=1"});
}

// As a script's background job is started.
TEST_F(SignalsTest, AnIgnoredSigintIsSaid) {
  const std::string run =
      "$tessera train run.toml --run.dir=a --train.steps=2 --schedule.decay_ratio=0";
  EXPECT_THAT(shell("trap '' INT; " + run).err, HasSubstr("SIGINT is ignored"));
  std::filesystem::remove_all(path("a"));
  EXPECT_THAT(shell(run).err, Not(HasSubstr("SIGINT is ignored")));
}

}  // namespace
}  // namespace tessera
