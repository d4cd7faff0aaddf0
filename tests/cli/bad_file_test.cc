// Files, disks and memory that fail a run: the exit code, the message, and what goes on after.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/machine.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/units.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

class BadFileTest : public TrainingTest {
 protected:
  // A finished run of 8 steps whose last checkpoint then is damaged by `damage`; the message of the
  // error when it is asked to go on.
  template <class Damage>
  std::string damaged_checkpoint(const std::string& file, const Damage& damage) {
    EXPECT_EQ(train("run", {"--checkpoint.every=4", "--train.steps=8"}).code, 0);
    EXPECT_EQ(train("same").code, 0);
    const std::filesystem::path damaged = checkpoint("run", 8) / file;
    std::string bytes = read_file(damaged);
    damage(bytes);
    write_test_file(damaged, bytes);
    const Outcome outcome = train("run", {"--checkpoint.fall_back=false"});
    EXPECT_EQ(outcome.code, 3);
    EXPECT_EQ(read_file(damaged), bytes) << "the damaged file is left for its owner to look at";
    return last_line(outcome.err);
  }

  // What `tessera explain` says that the run needs.
  std::int64_t arena_bytes(std::vector<std::string> options) {
    options.insert(options.begin(), {"explain", "run.toml"});
    const std::string text = tessera(std::move(options)).out;
    const std::regex arena("arena .*\\(([0-9,]+) bytes;");
    std::smatch match;
    EXPECT_TRUE(std::regex_search(text, match, arena));
    std::string digits = match[1];
    std::erase(digits, ',');
    return std::stoll(digits);
  }

  // What the message advises works, and ends as the run without damage ended.
  void expect_earlier_checkpoint_works() {
    const Outcome outcome = train("run", {"--checkpoint.resume=run/checkpoints/step-00000004"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(differing_tensors(checkpoint("run"), checkpoint("same")), IsEmpty());
  }
};

constexpr const char* kWeights = "model-00001-of-00001.safetensors";

TEST_F(BadFileTest, TruncatedCheckpoint) {
  const std::string message =
      damaged_checkpoint(kWeights, [](std::string& bytes) { bytes.resize(1000); });
  EXPECT_THAT(
      message,
      AllOf(StartsWith(format(
                "error: run/checkpoints/step-00000008/{}: found 1000 bytes, expected ", kWeights)),
            HasSubstr(": truncated or damaged; use an earlier checkpoint")));
  expect_earlier_checkpoint_works();
}

TEST_F(BadFileTest, FlippedByteInACheckpoint) {
  for (const char* file : {kWeights, "optimizer-00001-of-00001.safetensors"}) {
    const std::string message =
        damaged_checkpoint(file, [](std::string& bytes) { bytes[bytes.size() / 2] ^= 1; });
    EXPECT_THAT(
        message,
        AllOf(StartsWith(format("error: run/checkpoints/step-00000008/{}: found checksum ", file)),
              HasSubstr(": damaged; use an earlier checkpoint")));
    expect_earlier_checkpoint_works();
    std::filesystem::remove_all(path("run"));
  }
}

TEST_F(BadFileTest, RunFile) {
  EXPECT_THAT(tessera({"train", "none.toml"}).err,
              HasSubstr("cannot open none.toml: No such file"));
  write_test_file(path("bad.toml"), "[run]\ndir = \"run\"\n[modle]\ndim = 32\n");
  const Outcome outcome = tessera({"train", "bad.toml"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err,
            "error: bad.toml:3:2: unknown section \"modle\"; did you mean \"model\"?\n");
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

TEST_F(BadFileTest, Tokenizer) {
  write_test_file(path("tokenizer.json"), R"({"model": {"type": )");
  const Outcome outcome = train("run");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(last_line(outcome.err),
              AllOf(StartsWith("error: not JSON at byte 19: "), EndsWith(" (in tokenizer.json)")));
}

TEST_F(BadFileTest, SequenceLongerThanTheData) {
  const Outcome outcome = train("run", {"--data.sequence_length=20000"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(
      last_line(outcome.err),
      AllOf(StartsWith("error: data.sequence_length = 20000 is longer than the data: found "),
            HasSubstr(" tokens, expected at least 20001; add data, or set "
                      "data.sequence_length to at most "),
            EndsWith(" (data.files: corpus.txt)")));
}

// The step under way is lost, the state before it is not.
TEST_F(BadFileTest, DataThatAreCutUnderARunLoseNoStep) {
  write_test_file(path("ids.bin"), std::string(400'000, '\1'));
  const Outcome outcome = shell(
      "$tessera train run.toml --train.steps=1000000 --data.files=ids.bin --data.format=tokens "
      "--tokenizer.path= --tokenizer.train_vocab=0 --sample.prompt= --checkpoint.every=0 & run=$!\n"
      "while kill -0 $run 2>/dev/null && ! test -s run/metrics.jsonl; do sleep 0.02; done\n"
      "truncate -s 10 ids.bin; wait $run");
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_THAT(last_line(outcome.err),
              AllOf(StartsWith("error: ids.bin: it can no longer be read: "),
                    ContainsRegex("\\(the state after step [0-9]+ is saved as run/checkpoints/"
                                  "step-[0-9]+\\)$")));
  EXPECT_EQ(tessera({"checkpoint", "verify", "run"}).code, 0);
}

// A file system without space refuses a write as the limit on a file's size does.
TEST_F(BadFileTest, FullDiskWhileSaving) {
  ASSERT_EQ(train("run", {"--train.steps=4"}).code, 0);
  const Outcome outcome = shell("ulimit -f 100; exec $tessera train run.toml --checkpoint.every=4");
  EXPECT_EQ(outcome.code, 5);
  // Training goes on without a checkpoint that was made in the background, but not from the end.
  EXPECT_THAT(outcome.err, HasSubstr("warning: there is no checkpoint of step 8: cannot write "));
  EXPECT_THAT(outcome.err,
              HasSubstr("; the last good checkpoint is run/checkpoints/step-00000004"));
  EXPECT_THAT(last_line(outcome.err),
              AllOf(StartsWith("error: cannot write run/checkpoints/"),
                    EndsWith(": File too large (while saving checkpoint "
                             "run/checkpoints/step-00000012; earlier checkpoints are intact) (the "
                             "last good checkpoint is run/checkpoints/step-00000004: the same "
                             "command goes on from there)")));
  EXPECT_EQ(checkpoint("run"), checkpoint("run", 4));
  std::vector<std::filesystem::path> left;
  for (const auto& entry : std::filesystem::directory_iterator(path("run/checkpoints"))) {
    left.push_back(entry.path());
  }
  EXPECT_THAT(left, SizeIs(1)) << "half a checkpoint is left behind";

  ASSERT_EQ(train("run").code, 0);
  ASSERT_EQ(train("same", {"--train.steps=4"}).code, 0);
  ASSERT_EQ(train("same").code, 0);
  expect_same_training("run", "same");
}

// The metrics are longer than all else that the run writes by then.
TEST_F(BadFileTest, FullDiskWhileWritingMetrics) {
  ASSERT_EQ(train("run", {"--train.steps=4"}).code, 0);
  std::vector<std::string> lines = metrics("run");
  lines.back().insert(1, 50'000, ' ');
  write_test_file(path("run/metrics.jsonl"), "");
  for (const std::string& line : lines) {
    std::ofstream(path("run/metrics.jsonl"), std::ios::app) << line << '\n';
  }
  const Outcome outcome = shell("ulimit -f 100; exec $tessera train run.toml");
  EXPECT_EQ(outcome.code, 5);
  // Which is no reason to end; the checkpoint at the end is one.
  EXPECT_THAT(
      outcome.err,
      HasSubstr("warning: cannot write run/metrics.jsonl: File too large: training goes on"));
  EXPECT_THAT(last_line(outcome.err), StartsWith("error: cannot write run/checkpoints/"));
  ASSERT_EQ(train("run").code, 0);
  ASSERT_EQ(train("same", {"--train.steps=4"}).code, 0);
  ASSERT_EQ(train("same").code, 0);
  expect_same_training("run", "same");
}

TEST_F(BadFileTest, StdoutThatCannotBeWritten) {
  for (const char* command : {"explain run.toml",
                              "config",
                              "--version",
                              "train run.toml --train.steps=4",
                              "generate run --prompt=Line --tokens=2"}) {
    const Outcome outcome = shell(format("exec $tessera {} > /dev/full", command));
    EXPECT_EQ(outcome.code, 1) << command;
    EXPECT_THAT(last_line(outcome.err), StartsWith("error: cannot write to stdout: ")) << command;
  }
  EXPECT_THAT(metrics("run"), SizeIs(4)) << "the training itself has ended well";
}

// Their numbers would go to the files that the run opens.
TEST_F(BadFileTest, ClosedStandardStreams) {
  const Outcome outcome = shell("exec $tessera train run.toml <&- >&- 2>&-");
  EXPECT_EQ(outcome.code, 0);
  ASSERT_EQ(train("same").code, 0);
  expect_same_training("run", "same");
  EXPECT_THAT(read_file(path("run/lock")), testing::MatchesRegex("process [0-9]+ on .+\n"));
  for (const std::string& line : metrics("run")) {
    EXPECT_THAT(line, testing::MatchesRegex("\\{\"step\":[0-9]+,.*\\}"));
  }
}

// As what another user may not read, which root may: here the system refuses the name.
TEST_F(BadFileTest, PathsThatCannotBeLookedAt) {
  const std::string name(300, 'x');
  const auto refused =
      [&](const std::vector<std::string>& overrides, int code, const std::string& message) {
        const Outcome outcome = train("run", overrides);
        EXPECT_EQ(outcome.code, code);
        EXPECT_EQ(last_line(outcome.err), "error: " + message);
      };
  refused({"--tokenizer.path=" + name}, 3, format("cannot open {}: File name too long", name));
  refused({"--checkpoint.resume=" + name},
          3,
          format("cannot open {0}/manifest.json: File name too long (--checkpoint.resume={0}: "
                 "checkpoint.resume)",
                 name));
  refused({"--passes.dump=/proc/none"}, 5, "cannot access /proc/none: No such file or directory");
  const Outcome outcome = tessera({"generate", name});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err, format("error: cannot open {}/manifest.json: File name too long\n", name));
}

// What a launcher reads that does not see the exit code.
TEST_F(BadFileTest, ExitRecord) {
  const auto record = [&] { return nlohmann::json::parse(read_file(path("run/exit-0.json"))); };
  ASSERT_EQ(train("run", {"--data.files=none.txt"}).code, 3);
  EXPECT_EQ(record(),
            nlohmann::json({{"rank", 0},
                            {"exit_code", 3},
                            {"error", "invalid data"},
                            {"message", "cannot open none.txt: No such file or directory"}}));
  ASSERT_EQ(train("run", {"--train.steps=4"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(path("run/exit-0.json"))) << "that was another run";
  const Outcome outcome = shell("ulimit -f 100; exec $tessera train run.toml --checkpoint.every=3");
  ASSERT_EQ(outcome.code, 5);
  EXPECT_EQ(record()["exit_code"], 5);
  EXPECT_EQ(record()["error"], "device error");
  EXPECT_EQ(record()["step"], 12);
  EXPECT_EQ(last_line(outcome.err), "error: " + record()["message"].get<std::string>());

  Process first = start_training("run", {"--train.steps=200"});
  ASSERT_TRUE(first.wait_for("\nstep 5/200"));
  ASSERT_EQ(train("run").code, 2);
  EXPECT_FALSE(std::filesystem::exists(path("run/exit-0.json")))
      << "a run that does not get the directory writes nothing into it";
  EXPECT_EQ(first.finish().code, 0);
}

TEST_F(BadFileTest, RunDirectoryInUse) {
  Process first = start_training("run", {"--train.steps=200"});
  ASSERT_TRUE(first.wait_for("\nstep 1/200"));
  const Outcome second = train("run");
  EXPECT_EQ(second.code, 2);
  EXPECT_EQ(
      second.err,
      format("error: the run directory run is in use by process {} on {}: wait for it to end, "
             "or choose another one\n",
             first.id(),
             host_name()));
  EXPECT_EQ(first.finish().code, 0);
  EXPECT_THAT(metrics("run"), SizeIs(200));
}

TEST_F(BadFileTest, RunDirectoryThatCannotBe) {
  const Outcome outcome = train("corpus.txt");
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(last_line(outcome.err),
              StartsWith("error: cannot create directory corpus.txt: File exists (run.dir)"));
}

// explain says how much a plan needs; a run with a byte less does not start.
TEST_F(BadFileTest, PlanThatDoesNotFit) {
  const std::int64_t needed = arena_bytes({});
  const std::int64_t least = arena_bytes({"--memory.recompute=full"});
  ASSERT_LT(least, needed);
  const std::string limit = format("--memory.limit_bytes={}", least);
  const Outcome refused = train("run", {limit, "--memory.recompute=none"});
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr(format("error: the run needs {} and may use {} (memory.limit_bytes)",
                                     format_bytes(needed),
                                     format_bytes(least))),
                    HasSubstr("optimizer"),
                    HasSubstr(format("memory.recompute = \"auto\" needs {}, which fits",
                                     format_bytes(least)))));
  // Line by line, as explain prints it.
  EXPECT_THAT(refused.err, testing::ContainsRegex("\n  parameter +[0-9.]+ [KM]iB\n"));
  EXPECT_FALSE(std::filesystem::exists(path("run/metrics.jsonl")));

  EXPECT_EQ(train("run", {limit, "--memory.recompute=full"}).code, 0);
  EXPECT_EQ(train("fitted", {limit}).code, 0);

  const std::vector<std::string> smallest = {"--memory.recompute=full", "--train.microbatch=1"};
  const std::string too_little = format("--memory.limit_bytes={}", arena_bytes(smallest) - 1);
  const Outcome shorter = train("run", {too_little, smallest[0], smallest[1]});
  EXPECT_EQ(shorter.code, 4);
  EXPECT_THAT(shorter.err, ContainsRegex("data.sequence_length = 16 needs .*, which fits"));
}

TEST_F(BadFileTest, ExplainSaysWhetherAPlanFits) {
  const std::string needed = format_bytes(arena_bytes({}));
  const Outcome fits = tessera({"explain", "run.toml"});
  EXPECT_THAT(fits.out, HasSubstr(format("  it fits: it needs {}, and this machine has", needed)));
  const Outcome limited =
      tessera({"explain", "run.toml", "--memory.limit_bytes=1024000", "--memory.recompute=none"});
  EXPECT_THAT(limited.out,
              HasSubstr(format("  it does not fit: it needs {}, and memory.limit_bytes allows {}\n",
                               needed,
                               format_bytes(1024000))));
  const auto on_a_chip_of = [&](std::int64_t bytes, const std::vector<std::string>& more) {
    write_test_file(path("small.toml"),
                    format(R"(
name = "small"
[device]
name = "chip"
memory = "{} B"
memory_bandwidth = "1 GB/s"
peak = {{ f32 = "1 GFLOP/s", bf16 = "1 GFLOP/s" }}
[[levels]]
name = "node"
size = 2
bandwidth = "1 GB/s"
latency = "1 us"
)",
                           bytes));
    std::vector<std::string> command = {"explain", "run.toml", "--cluster.file=small.toml"};
    command.insert(command.end(), more.begin(), more.end());
    const Outcome outcome = tessera(command);
    return outcome.out + outcome.err;
  };
  EXPECT_THAT(
      on_a_chip_of(arena_bytes({}) - 1, {"--memory.recompute=none"}),
      HasSubstr(format("  it does not fit: it needs {}, and a chip of the cluster has ", needed)));
  // The copy from which a save is written in the background is the host's.
  EXPECT_THAT(on_a_chip_of(arena_bytes({}), {"--checkpoint.every=4"}),
              HasSubstr(format("  it fits: it needs {}, and a chip of the cluster has ", needed)));
}

// Before its memory, which it needs no more.
TEST_F(BadFileTest, SequencesLongerThanAllData) {
  const Outcome outcome = train("run", {"--data.sequence_length=100000000"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(last_line(outcome.err),
              HasSubstr("--data.sequence_length=100000000: data.sequence_length: found 100000000, "
                        "and the data are of "));
}

TEST_F(BadFileTest, PlanThatCannotBeMadeToFit) {
  const Outcome outcome = train("run", {"--memory.limit_bytes=100000"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("nothing of this fits: choose a smaller model, "),
                    Not(HasSubstr("which fits"))));
}

TEST_F(BadFileTest, MoreMicrobatchesThanCouldBeWrittenDown) {
  const Outcome outcome = train("run", {"--train.global_batch=2147483646"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err,
              HasSubstr("error: --train.global_batch=2147483646: train.global_batch: the token ids "
                        "of a step need "));
}

}  // namespace
}  // namespace tessera
