// A run that was stopped and goes on is, bit by bit, the run that was never stopped.

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/file_digest.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

// Enough steps that a program cannot end while its output is not read (see Process).
constexpr const char* kSteps = "--train.steps=200";

struct Variant {
  std::string name;
  std::vector<std::string> overrides;           // of the run that is stopped
  std::vector<std::string> expected_overrides;  // of the one that is not
};

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

std::vector<std::string> with_steps(std::vector<std::string> overrides) {
  overrides.emplace_back(kSteps);
  return overrides;
}

class ResumeTest : public TrainingTest, public testing::WithParamInterface<Variant> {};

TEST_P(ResumeTest, AfterSigterm) {
  const std::vector<std::string> overrides = with_steps(GetParam().overrides);
  Process process = start_training("a", overrides);
  ASSERT_TRUE(process.wait_for("\nstep 5/200"));
  process.send(SIGTERM);
  const Outcome stopped = process.finish();
  ASSERT_EQ(stopped.code, 0) << stopped.err;
  const std::int64_t step = CheckpointReader(checkpoint("a")).meta().step;
  EXPECT_LT(step, 200);
  EXPECT_THAT(metrics("a"), SizeIs(step));
  EXPECT_THAT(
      stopped.err,
      HasSubstr(format("stopped after step {}; the same command goes on from there", step)));
  EXPECT_THAT(stopped.out, HasSubstr(format("(step {}, loss ", step)));

  const Outcome resumed = train("a", overrides);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr(format("after step {}\n", step)));
  ASSERT_EQ(train("b", with_steps(GetParam().expected_overrides)).code, 0);
  expect_same_training("a", "b");
  EXPECT_THAT(metrics("a"), SizeIs(200));
}

// Recompute and fusion change no bit, so those runs are compared with one that has neither.
INSTANTIATE_TEST_SUITE_P(
    Variants,
    ResumeTest,
    testing::Values(Variant{"Plain", {}, {}},
                    Variant{"Recompute", {"--memory.recompute=full"}, {}},
                    Variant{"NoFusion", {"--passes.fuse=false"}, {}},
                    Variant{"OneMicrobatch", {"--train.microbatch=4"}, {"--train.microbatch=4"}},
                    Variant{"FourMicrobatches",
                            {"--train.microbatch=1", "--memory.recompute=full"},
                            {"--train.microbatch=1"}},
                    Variant{"Pipeline",
                            {"--train.microbatch=1", "--parallel.pipeline=2"},
                            {"--train.microbatch=1"}},
                    Variant{"Bf16", {"--train.dtype=bf16"}, {"--train.dtype=bf16"}},
                    Variant{"InOrder", {"--data.shuffle=false"}, {"--data.shuffle=false"}}),
    [](const auto& test) { return test.param.name; });

class KillTest : public TrainingTest {};

TEST_F(KillTest, GoesOnFromTheLastCheckpoint) {
  Process process = start_training("a", {kSteps, "--checkpoint.every=10"});
  // The save of step 30 waits for that of step 20, which is written in the background.
  ASSERT_TRUE(process.wait_for("\nstep 31/200"));
  process.send(SIGKILL);
  ASSERT_EQ(process.finish().code, 128 + SIGKILL);
  const std::int64_t step = CheckpointReader(checkpoint("a")).meta().step;
  EXPECT_GE(step, 20);
  EXPECT_LT(step, 200);
  EXPECT_EQ(step % 10, 0);

  const Outcome resumed = train("a", {kSteps, "--checkpoint.every=10"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr(format("after step {}\n", step)));
  ASSERT_EQ(train("b", {kSteps}).code, 0);
  expect_same_training("a", "b");
  std::vector<std::int64_t> all(200);
  std::iota(all.begin(), all.end(), std::int64_t{1});
  EXPECT_EQ(event_steps("b"), all);
  EXPECT_EQ(event_steps("a"), all) << "TensorBoard sees each step once";
}

TEST_F(KillTest, BeforeAnyCheckpointTheRunStartsAgain) {
  Process process = start_training("a", {kSteps});
  ASSERT_TRUE(process.wait_for("\nstep 5/200"));
  process.send(SIGKILL);
  ASSERT_EQ(process.finish().code, 128 + SIGKILL);
  ASSERT_EQ(train("a", {kSteps}).code, 0);
  ASSERT_EQ(train("b", {kSteps}).code, 0);
  expect_same_training("a", "b");
}

TEST_F(KillTest, ResumeFromANamedCheckpointOrNot) {
  ASSERT_EQ(train("b", {"--checkpoint.every=4"}).code, 0);
  const Outcome named = train("a", {"--checkpoint.resume=b/checkpoints/step-00000004"});
  ASSERT_EQ(named.code, 0) << named.err;
  EXPECT_THAT(metrics("a"), SizeIs(8));
  EXPECT_THAT(differing_tensors(checkpoint("a"), checkpoint("b")), testing::IsEmpty());

  const Outcome refused = train("b", {"--checkpoint.resume=none"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("checkpoint.resume = \"none\", but b/checkpoints/step-00000012 exists"));
}

// That nobody reads its progress any more does not end a run.
TEST_F(KillTest, AClosedPipeCostsNoStep) {
  const Outcome outcome = shell(
      "{ \"$tessera\" train run.toml --run.dir=a --train.steps=200 --log.every=1 2>&1; "
      "echo $? > code; } | head -n 8");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(read_file(path("code")), "1\n") << "its last line went nowhere; no signal ended it";
  EXPECT_THAT(metrics("a"), SizeIs(200));
  EXPECT_EQ(CheckpointReader(checkpoint("a")).meta().step, 200);
}

// The same names may hold another text: the run goes on, and says so.
TEST_F(KillTest, OtherDataAreTold) {
  ASSERT_EQ(train("a", {"--train.steps=4"}).code, 0);
  const Outcome same = train("a", {"--train.steps=8"});
  EXPECT_THAT(same.err, Not(HasSubstr("these are not the data")));
  const std::string text = read_file(path("corpus.txt"));
  write_test_file(path("corpus.txt"), text + text);
  const Outcome other = train("a", {"--train.steps=12"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(
      other.err,
      ContainsRegex("warning: these are not the data that a/checkpoints/step-00000008 was "
                    "trained on: found [0-9]+ tokens in 1 documents; it had [0-9]+ tokens in "
                    "1 documents"));
}

// A run that goes on from an older checkpoint of its own leaves the newer ones behind.
TEST_F(KillTest, ResumeFromAnOlderCheckpointOfItsOwn) {
  ASSERT_EQ(train("a", {"--train.steps=10", "--checkpoint.every=2"}).code, 0);
  const Outcome branch = train("a",
                               {"--train.steps=7",
                                "--checkpoint.resume=a/checkpoints/step-00000006",
                                "--checkpoint.keep=1",
                                "--sample.prompt=Line",
                                "--sample.tokens=1"});
  ASSERT_EQ(branch.code, 0) << branch.err;
  EXPECT_THAT(branch.err,
              HasSubstr("set aside as a/checkpoints/abandoned-step-00000010: the run goes on from "
                        "step 6\n"));
  EXPECT_EQ(checkpoint("a"), checkpoint("a", 7));
  EXPECT_FALSE(std::filesystem::exists(checkpoint("a", 6))) << "keep = 1";
  EXPECT_TRUE(std::filesystem::exists(path("a/checkpoints/abandoned-step-00000010")));
  EXPECT_THAT(metrics("a"), SizeIs(7));
  const Outcome generated =
      tessera({"generate", checkpoint("a", 7), "--prompt=Line", "--tokens=1"});
  EXPECT_THAT(branch.out, HasSubstr(generated.out));

  ASSERT_EQ(train("a", {"--train.steps=7"}).code, 0) << "nothing to do changes nothing";
  EXPECT_EQ(checkpoint("a"), checkpoint("a", 7));
  ASSERT_EQ(train("a", {"--train.steps=12"}).code, 0);
  ASSERT_EQ(train("b", {"--train.steps=10", "--checkpoint.every=2"}).code, 0);
  const std::vector<std::string> resumed = {"--train.steps=7",
                                            "--checkpoint.resume=b/checkpoints/step-00000006"};
  ASSERT_EQ(train("c", resumed).code, 0);
  ASSERT_EQ(train("c", {"--train.steps=12"}).code, 0);
  EXPECT_THAT(differing_tensors(checkpoint("a", 12), checkpoint("c", 12)), testing::IsEmpty());
  EXPECT_THAT(metrics("a"), SizeIs(12));
}

// Nothing new is computed, so nothing that is there may go.
TEST_F(KillTest, ResumeFromAnOlderCheckpointWithoutANewStep) {
  ASSERT_EQ(train("a", {"--checkpoint.every=4"}).code, 0);
  const Outcome outcome =
      train("a", {"--train.steps=4", "--checkpoint.resume=a/checkpoints/step-00000004"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(checkpoint("a"), checkpoint("a", 12));
  EXPECT_THAT(metrics("a"), SizeIs(12));
}

TEST_F(KillTest, ResumeFromARunDirectory) {
  ASSERT_EQ(train("b", {"--train.steps=4"}).code, 0);
  const Outcome outcome = train("a", {"--checkpoint.resume=b"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("resuming from b/checkpoints/step-00000004 after step 4\n"));
  EXPECT_EQ(train("a", {"--checkpoint.resume=none/such"}).code, 2);
}

// Neither in silence nor by a name that nobody knows.
TEST_F(KillTest, ADamagedCheckpointIsSetAsideLoudly) {
  const std::vector<std::string> saving = {"--checkpoint.every=4", "--checkpoint.keep=0"};
  ASSERT_EQ(train("whole", saving).code, 0);
  ASSERT_EQ(train("a", saving).code, 0);
  std::string name;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint("a", 12))) {
    if (entry.path().extension() == ".safetensors") {
      std::string bytes = read_file(entry.path());
      bytes.back() = static_cast<char>(bytes.back() ^ 1);
      write_test_file(entry.path(), bytes);
      name = entry.path().filename().string();
      break;
    }
  }
  ASSERT_NE(name, "");
  std::vector<std::string> strict = saving;
  strict.emplace_back("--checkpoint.fall_back=false");
  const Outcome refused = train("a", strict);
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, HasSubstr("a/checkpoints/step-00000012/" + name));
  const Outcome outcome = train("a", saving);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("warning: DAMAGED CHECKPOINT: a/checkpoints/step-00000012 is set aside as "
                        "a/checkpoints/damaged-step-00000012\n"
                        "warning: going on from a/checkpoints/step-00000008, the newest that is "
                        "whole; "));
  EXPECT_THAT(outcome.err, ContainsRegex("whole; [^\n]*" + name + "[^\n]*found checksum"));
  EXPECT_THAT(outcome.err, HasSubstr("resuming from a/checkpoints/step-00000008 after step 8\n"));
  EXPECT_TRUE(std::filesystem::exists(path("a/checkpoints/damaged-step-00000012") / name));
  expect_same_training("a", "whole");
}

// It is not damaged: a later program can read it, and an older one is not taken in its place.
TEST_F(KillTest, ACheckpointOfALaterVersionIsRefused) {
  ASSERT_EQ(train("a", {"--checkpoint.every=4", "--checkpoint.keep=0"}).code, 0);
  const std::filesystem::path manifest = checkpoint("a") / "manifest.json";
  const std::string text = read_file(manifest);
  const std::string_view front = "\"manifest\":";
  const std::size_t begin = text.find(front) + front.size();
  std::string body = text.substr(begin, text.rfind('}') - begin);
  const std::string version = "\"version\": ";
  const std::size_t at = body.find(version) + version.size();
  ASSERT_EQ(body.substr(at, 2), "2,");
  body.replace(at, 1, "3");
  write_test_file(manifest,
                  format("{{\"xxh3_128\":\"{}\",\n\"manifest\":{}}}\n",
                         digest(std::as_bytes(std::span(body))).xxh3_128,
                         body));
  // The record of the exit is there, and the lock names another process.
  const std::string look =
      "cd a && find . -type f ! -name exit-0.json ! -name lock | sort | xargs cksum && ls -lR "
      "checkpoints";
  const std::string before = shell(look).out;
  const Outcome outcome = train("a", {"--train.steps=16"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("error: \"version\": found 3, expected 1 to 2: a later Tessera has written "
                        "this checkpoint: update this one, or go on from an older checkpoint with "
                        "--checkpoint.resume=PATH"));
  EXPECT_THAT(outcome.err, HasSubstr("a/checkpoints/step-00000012/manifest.json"));
  EXPECT_EQ(shell(look).out, before);
  const Outcome older =
      train("a", {"--train.steps=16", "--checkpoint.resume=a/checkpoints/step-00000008"});
  EXPECT_EQ(older.code, 0) << older.err;
}

TEST_F(KillTest, AnotherTokenizerIsRefused) {
  ASSERT_EQ(train("a").code, 0);
  // One of as many entries, so that nothing else would tell them apart.
  write_test_file(
      path("other.txt"),
      "Lines of another text, with other words and other pairs: " + corpus_text().substr(3000));
  ASSERT_EQ(tessera({"tokenizer", "train", "other.txt", "--vocab=300", "--output=other.json"}).code,
            0);
  ASSERT_NE(read_file(path("other.json")), read_file(path("tokenizer.json")));
  const Outcome outcome = train("a", {"--tokenizer.path=other.json", "--train.steps=20"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err,
              testing::AllOf(HasSubstr("error: other.json is not the tokenizer that "
                                       "a/checkpoints/step-00000012 was trained with"),
                             HasSubstr("a/tokenizer.json: name it in tokenizer.path")));
  EXPECT_EQ(read_file(path("a/tokenizer.json")), read_file(path("tokenizer.json")));
  EXPECT_THAT(metrics("a"), SizeIs(12));
}

TEST_F(KillTest, ChangedKeysAreNamedOnce) {
  const std::string constant = "--schedule.decay_ratio=0";
  ASSERT_EQ(train("a", {"--train.steps=4", constant}).code, 0);
  EXPECT_THAT(
      train("a", {"--train.steps=5", constant, "--checkpoint.every=2", "--passes.fuse=false"}).err,
      testing::Not(HasSubstr("warning")));
  const Outcome outcome = train("a", {"--data.shuffle=false", "--train.microbatch=4", constant});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("warning: not bit by bit the run that was never stopped, since these keys "
                        "differ from a/checkpoints/step-00000005: data.shuffle (true, now false), "
                        "train.microbatch (2, now 4)\n"));
}

// By hand: half of the steps decay from 3e-3 to 0; step 4 of 4 is the last but one of two.
TEST_F(KillTest, MoreStepsSayWhatTheLearningRateDoes) {
  ASSERT_EQ(train("a", {"--train.steps=4"}).code, 0);
  const Outcome outcome = train("a");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              testing::AllOf(HasSubstr("differ from a/checkpoints/step-00000004: train.steps (4, "
                                       "now 12)\n"),
                             HasSubstr("the learning rate goes from 0.0015 at step 4 to 0.003 at "
                                       "step 5\n")));
}

// A new one would be another, and would be there for other runs.
TEST_F(KillTest, ATokenizerThatIsGoneIsTheRunsOwn) {
  ASSERT_EQ(train("a").code, 0);
  std::filesystem::rename(path("tokenizer.json"), path("away.json"));
  const Outcome outcome = train("a", {"--train.steps=13"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("warning: tokenizer.json does not exist: the tokenizer that "));
  EXPECT_FALSE(std::filesystem::exists(path("tokenizer.json")));
  EXPECT_EQ(shell("find a -name tokenizer.json -delete").code, 0);
  const Outcome without = train("a", {"--train.steps=14"});
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err,
              HasSubstr("tokenizer.json does not exist, and the run goes on from "
                        "a/checkpoints/step-00000013: name the tokenizer"));
  EXPECT_FALSE(std::filesystem::exists(path("tokenizer.json")));
}

TEST_F(KillTest, ARunFileOfARenamedRunIsNamed) {
  ASSERT_EQ(train("a", {"--train.steps=1"}).code, 0);
  EXPECT_THAT(tessera({"train", "a/config.toml"}).err, testing::Not(HasSubstr("warning")));
  std::filesystem::rename(path("a"), path("b"));
  EXPECT_THAT(tessera({"train", "b/config.toml"}).err,
              HasSubstr("warning: b/config.toml lies in the directory of a run, but run.dir is a, "
                        "where this one trains: --run.dir=b goes on with that run\n"));
}

TEST_F(KillTest, AnotherSeedIsRefused) {
  ASSERT_EQ(train("a").code, 0);
  const Outcome outcome = train("a", {"--run.seed=7"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("was made with run.seed = 42, found run.seed = 7"));
}

// What an interruption left is removed by the next start, also by one that has no step to do.
TEST_F(KillTest, AStartRemovesWhatTheRunDoesNotKeep) {
  const std::vector<std::string> all = {
      "--train.steps=6", "--checkpoint.every=2", "--checkpoint.keep=0"};
  ASSERT_EQ(train("run", all).code, 0);
  std::vector<std::string> some = {"--train.steps=6", "--checkpoint.keep=2"};
  const Outcome start = train("run", some);
  EXPECT_EQ(start.code, 0) << start.err;
  EXPECT_THAT(start.err, HasSubstr("nothing to do"));
  EXPECT_FALSE(std::filesystem::exists(checkpoint("run", 2)));
  EXPECT_TRUE(std::filesystem::exists(checkpoint("run", 4)));
  EXPECT_TRUE(std::filesystem::exists(checkpoint("run", 6)));
  // A step that is finite shows that the newest one is good.
  some = {"--train.steps=7", "--checkpoint.keep=1"};
  ASSERT_EQ(train("run", some).code, 0);
  EXPECT_FALSE(std::filesystem::exists(checkpoint("run", 4)));
}

}  // namespace
}  // namespace tessera
