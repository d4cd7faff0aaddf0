// Runs whose disk is short of space, or is slow: what they say, and how they end.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class FaultyRunTest : public TrainingTest {
 protected:
  // `tessera ARGUMENTS` with faults.
  Outcome faulty(const std::string& faults, const std::string& arguments) const {
    return shell(with_faults(faults) + " \"$tessera\" " + arguments);
  }
};

// The size of a checkpoint is known before the first one is written.
TEST_F(FaultyRunTest, AStartSaysThatTheDiskIsTooSmall) {
  const std::string run = "train run.toml --run.dir=a --train.steps=4 --checkpoint.keep=3";
  const Outcome roomy = shell("\"$tessera\" " + run);
  ASSERT_EQ(roomy.code, 0) << roomy.err;
  EXPECT_THAT(roomy.err, Not(HasSubstr("the disk of")));
  const Outcome small = faulty("space path=b most=1048576",
                               "train run.toml --run.dir=b --train.steps=4 --checkpoint.keep=30");
  ASSERT_EQ(small.code, 0) << small.err;
  EXPECT_THAT(small.err,
              ContainsRegex("warning: the disk of b has 1.00 MiB free, and a checkpoint takes "
                            "[0-9.]+ KiB: checkpoint.keep = 30 needs room for 32 at a time, of "
                            "which 0 are there, so that saves will fail once it is full; free some "
                            "of it, or set checkpoint.keep lower\n"));
  // With the best one beside them, and one that is there.
  const Outcome best = faulty("space path=a most=1048576",
                              "train run.toml --run.dir=a --train.steps=5 --checkpoint.keep=30 "
                              "--data.validation_share=0.2 --validation.every=1");
  ASSERT_EQ(best.code, 0) << best.err;
  EXPECT_THAT(best.err, HasSubstr("needs room for 33 at a time, of which 1 are there"));
}

// Work of more than two seconds shows how far it is.
TEST_F(FaultyRunTest, AStartSaysHowFarItsTokenizingIs) {
  ASSERT_EQ(train("a", {"--train.steps=2"}).code, 0);
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += corpus_text();
  }
  write_test_file(path("large.txt"), text);
  const Outcome slow = faulty("read path=large.txt times=all delay=0.5",
                              "train run.toml --run.dir=c --train.steps=2 --data.files=large.txt");
  ASSERT_EQ(slow.code, 0) << slow.err;
  EXPECT_THAT(
      slow.err,
      ContainsRegex("\ntokenizing: [0-9.]+ [KM]iB of [0-9.]+ [KM]iB \\([0-9]+ %\\)  [0-9.]+ "
                    "[KM]?i?B/s  [0-9hms. ]+ left\n"));
}

TEST_F(FaultyRunTest, EvalSaysHowFarItIs) {
  ASSERT_EQ(train("a").code, 0);
  ASSERT_EQ(
      tessera({"data", "tokenize", "corpus.txt", "--tokenizer=tokenizer.json", "-o", "set"}).code,
      0);
  const Outcome quick = tessera({"eval", "a", "--data=set"});
  ASSERT_EQ(quick.code, 0) << quick.err;
  const Outcome slow = faulty("open path=set.bin delay=2.5", "eval a --data=set");
  ASSERT_EQ(slow.code, 0) << slow.err;
  EXPECT_EQ(slow.out, quick.out);
  EXPECT_THAT(slow.err,
              ContainsRegex("[0-9]+ of [0-9]+ sequences \\([0-9]+ %\\)  .*left  loss [0-9.]+\n"));
}

// Nothing is there to be saved yet.
TEST_F(FaultyRunTest, ASignalEndsTheTokenizingOfAStart) {
  ASSERT_EQ(train("a", {"--train.steps=2"}).code, 0);
  for (const int signal : {SIGINT, SIGTERM}) {
    std::filesystem::remove(path("calls"));
    // A read that this test does not outlast.
    Process process({"/bin/sh",
                     "-c",
                     "exec " + with_faults("read path=corpus.txt delay=100000", "calls") + " " +
                         built_program("tessera") + " train run.toml --run.dir=b"},
                    path(""));
    while (!std::filesystem::exists(path("calls")) ||
           read_file(path("calls")).find("read ") == std::string::npos) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    process.send(SIGUSR1);
    EXPECT_TRUE(process.wait_for("nothing is saved: the run is not in its steps\n"));
    process.send(signal);
    EXPECT_EQ(process.finish().code, 128 + signal);
    EXPECT_FALSE(std::filesystem::exists(path("b/metrics.jsonl")));
  }
  const Outcome next = train("b", {"--train.steps=2"});
  EXPECT_EQ(next.code, 0) << next.err;
  expect_same_training("b", "a");
}

}  // namespace
}  // namespace tessera
