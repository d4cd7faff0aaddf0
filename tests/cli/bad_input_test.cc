// Bad input: the exit code, a message that says what is wrong and where, and nothing lost.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/backend/devices.h"
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

struct BadInput {
  std::string name;
  std::vector<std::string> overrides;
  int code = 0;
  std::string message;  // the whole last line of stderr
};

void PrintTo(const BadInput& input, std::ostream* out) {
  *out << input.name;
}

std::string last_line(const std::string& text) {
  const std::size_t end = text.size() - (text.ends_with('\n') ? 1 : 0);
  const std::size_t begin = end == 0 ? 0 : text.rfind('\n', end - 1) + 1;
  return text.substr(begin, end - begin);
}

class BadInputTest : public TrainingTest, public testing::WithParamInterface<BadInput> {};

// The run that the bad input was meant for is there before, and goes on after.
TEST_P(BadInputTest, IsRefused) {
  write_test_file(path("empty.txt"), "");
  std::filesystem::create_directory(path("directory"));
  ASSERT_EQ(train("run", {"--train.steps=4"}).code, 0);
  ASSERT_EQ(train("same", {"--train.steps=4"}).code, 0);

  const Outcome outcome = train("run", GetParam().overrides);
  EXPECT_EQ(outcome.code, GetParam().code);
  EXPECT_EQ(last_line(outcome.err), "error: " + GetParam().message);
  EXPECT_THAT(outcome.out, IsEmpty());
  expect_same_training("run", "same");
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    BadInputTest,
    testing::Values(
        BadInput{"UnknownKey",
                 {"--train.stepz=3"},
                 2,
                 "--train.stepz=3: unknown key \"train.stepz\"; did you mean \"steps\"?"},
        BadInput{"WrongType",
                 {"--data.shuffle=3"},
                 2,
                 "--data.shuffle=3: data.shuffle: found integer 3, expected true or false"},
        BadInput{"Float8Recipe",
                 {"--float8.recipe=blockwise"},
                 2,
                 "--float8.recipe=blockwise: float8.recipe: found string \"blockwise\", expected "
                 "\"off\" or "
                 "\"tensorwise\" or \"rowwise\""},
        BadInput{"Float8WithoutRecipe",
                 {"--float8.gradients=f8e4m3"},
                 2,
                 "--float8.gradients=f8e4m3: float8.gradients: found a value, but float8.recipe = "
                 "\"off\": expected tensorwise or rowwise, or none of [float8]"},
        BadInput{"SecondaryUseWithoutACopy",
                 {"--state.secondary_use=backward", "--parallel.ranks=2"},
                 2,
                 "--state.secondary_use=backward: state.secondary_use: found \"backward\", and "
                 "there is no secondary "
                 "copy to use: set state.secondary below param = 2, or a preset that has one "
                 "(zeropp or "
                 "shard-grad-op)"},
        BadInput{"NativeReductionOnTheCpu",
                 {"--comm.reduction=native", "--parallel.ranks=2"},
                 2,
                 "--comm.reduction=native: comm.reduction: found \"native\", which is for several "
                 "ranks on GPUs; this run is of ranks on the CPU: leave it out"},
        BadInput{
            "Float8WithoutLayers",
            {"--float8.recipe=rowwise", "--float8.skip_first=1", "--float8.skip_last=1"},
            2,
            "--float8.skip_first=1: float8.skip_first: found 1, which with float8.skip_last = 1 "
            "leaves none of model.layers = 2 in 8-bit floats: expected fewer, or float8.recipe "
            "= \"off\""},
        BadInput{"Float8CodesOfOneProductAlone",
                 {"--float8.recipe=rowwise", "--float8.keep_weight_codes=true"},
                 2,
                 "--float8.keep_weight_codes=true: float8.keep_weight_codes: found true, but "
                 "float8.recipe = \"rowwise\": expected tensorwise, whose codes of weights serve "
                 "forward and backward"},
        BadInput{
            "MomentsThatWouldNotMove",
            {"--optimizer.moments=bf16", "--optimizer.betas=[0.9, 0.999]"},
            2,
            "--optimizer.moments=bf16: optimizer.moments: found bf16, whose steps are too wide "
            "for optimizer.betas = [0.9, 0.999]: expected values of at most 0.99, or f32"},
        BadInput{
            "FirstMomentsThatWouldNotMove",
            {"--optimizer.moments=bf16", "--optimizer.betas=[0.999, 0.99]"},
            2,
            "--optimizer.moments=bf16: optimizer.moments: found bf16, whose steps are too wide "
            "for optimizer.betas = [0.999, 0.99]: expected values of at most 0.99, or f32"},
        BadInput{"LogitsOfF32Training",
                 {"--train.logits=bf16"},
                 2,
                 "--train.logits=bf16: train.logits: found bf16, with train.dtype = \"f32\": "
                 "expected f32"},
        BadInput{"GradientsOfF32Training",
                 {"--optimizer.gradients=bf16"},
                 2,
                 "--optimizer.gradients=bf16: optimizer.gradients: found bf16, with train.dtype = "
                 "\"f32\": expected f32"},
        BadInput{"GradientsThatAreAddedUp",
                 {"--optimizer.gradients=bf16",
                  "--train.dtype=bf16",
                  "--train.global_batch=4",
                  "--train.microbatch=2"},
                 2,
                 "--optimizer.gradients=bf16: optimizer.gradients: found bf16, which are not added "
                 "up, with 1 data ranks and train.global_batch = 4 in microbatches of 2: expected "
                 "f32, or one of each"},
        BadInput{"HeadsOfDim",
                 {"--model.heads=5"},
                 2,
                 "--model.heads=5: model.heads: found 5, expected a divisor of model.dim = 32"},
        BadInput{"KvHeadsOfHeads",
                 {"--model.kv_heads=3"},
                 2,
                 "--model.kv_heads=3: model.kv_heads: found 3, expected a divisor of model.heads "
                 "= 4"},
        BadInput{"HeadsOfFlavor",
                 {"--model.flavor=debug", "--model.dim=250"},
                 2,
                 "run.toml:7:9: model.heads: found 4, expected a divisor of model.dim = 250"},
        BadInput{"MicrobatchOfBatch",
                 {"--train.microbatch=3"},
                 2,
                 "--train.microbatch=3: train.microbatch: found 3, expected a divisor of "
                 "train.global_batch = 4"},
        BadInput{"MissingFile",
                 {"--data.files=missing.txt"},
                 3,
                 "cannot open missing.txt: No such file or directory (data.files: missing.txt)"},
        BadInput{"EmptyFile",
                 {"--data.files=empty.txt"},
                 3,
                 "empty.txt is empty: expected text (data.files: empty.txt)"},
        // Not "no permission", which root does not meet.
        BadInput{"UnreadableFile",
                 {"--data.files=directory"},
                 3,
                 "directory is a folder without files, hidden ones left out: expected data in it "
                 "(data.files: directory)"},
        BadInput{"NoTokenizer",
                 {"--run.dir=new", "--tokenizer.path=none.json", "--tokenizer.train_vocab=0"},
                 2,
                 "none.json does not exist: name a tokenizer.json, or set tokenizer.train_vocab to "
                 "train one on the data"},
        BadInput{"TokenizerOfAnotherModel",
                 {"--tokenizer.train_vocab=0", "--model.vocab=299"},
                 2,
                 "the tokenizer tokenizer.json has 300 entries, the model only 299: set "
                 "model.vocab = 300, or name the model's own tokenizer"},
        BadInput{
            "CheckpointOfAnotherModel",
            {"--model.ffn=128"},
            3,
            "checkpoint run/checkpoints/step-00000004 belongs to another model: tensor "
            "'layers.0.feed_forward.w1.weight': found f32 (64, 32), expected f32 (128, 32); go on "
            "with the [model] that its run has, or choose another run.dir"},
        BadInput{
            "CheckpointOfAnotherKind",
            {"--model.rope_theta=10000"},
            3,
            "checkpoint run/checkpoints/step-00000004 belongs to another model: "
            "model/rope_theta: found 500000, expected 10000; go on with the [model] that its run "
            "has, or choose another run.dir"},
        BadInput{"CheckpointOfAnotherDtype",
                 {"--train.dtype=bf16"},
                 3,
                 "checkpoint run/checkpoints/step-00000004 was made with train.dtype = \"f32\", "
                 "found train.dtype = \"bf16\": go on with the former, or choose another run.dir"},
        BadInput{"CheckpointOfOtherMoments",
                 {"--optimizer.moments=bf16"},
                 3,
                 "checkpoint run/checkpoints/step-00000004 was made with optimizer.moments = "
                 "\"f32\", found optimizer.moments = \"bf16\": go on with the former, or choose "
                 "another run.dir"},
        BadInput{"PromptTooLong",
                 {"--sample.prompt=" + std::string(40, 'Z')},
                 2,
                 "the prompt has 41 tokens, expected less than the 32 of the model's sequences "
                 "(data.sequence_length) (sample.prompt)"},
        BadInput{"NewTokenizerTooSmall",
                 {"--run.dir=new",
                  "--tokenizer.path=new.json",
                  "--tokenizer.train_vocab=100",
                  "--model.vocab=100"},
                 2,
                 "tokenizer.train_vocab is 100, but the 256 bytes and 2 special tokens need at "
                 "least 258"},
        BadInput{"NoSuchCheckpoint",
                 {"--checkpoint.resume=none/such"},
                 2,
                 "none/such does not exist, expected a run directory or a checkpoint "
                 "(--checkpoint.resume=none/such: checkpoint.resume)"}),
    [](const auto& test) { return test.param.name; });

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
  const Outcome refused = train("run", {limit});
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr(format("error: the run needs {} and may use {} (memory.limit_bytes)",
                                     format_bytes(needed),
                                     format_bytes(least))),
                    HasSubstr("optimizer"),
                    HasSubstr(format("memory.recompute = \"full\" needs {}, which fits",
                                     format_bytes(least)))));
  // Line by line, as explain prints it.
  EXPECT_THAT(refused.err, testing::ContainsRegex("\n  parameter +[0-9.]+ [KM]iB\n"));
  EXPECT_FALSE(std::filesystem::exists(path("run/metrics.jsonl")));

  EXPECT_EQ(train("run", {limit, "--memory.recompute=full"}).code, 0);

  const std::vector<std::string> smallest = {"--memory.recompute=full", "--train.microbatch=1"};
  const std::string too_little = format("--memory.limit_bytes={}", arena_bytes(smallest) - 1);
  const Outcome shorter = train("run", {too_little, smallest[0], smallest[1]});
  EXPECT_EQ(shorter.code, 4);
  EXPECT_THAT(shorter.err, ContainsRegex("data.sequence_length = 16 .* needs .*, which fits"));
}

TEST_F(BadFileTest, ExplainSaysWhetherAPlanFits) {
  const std::string needed = format_bytes(arena_bytes({}));
  const Outcome fits = tessera({"explain", "run.toml"});
  EXPECT_THAT(fits.out, HasSubstr(format("  it fits: it needs {}, and this machine has", needed)));
  const Outcome limited = tessera({"explain", "run.toml", "--memory.limit_bytes=1024000"});
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
      on_a_chip_of(arena_bytes({}) - 1, {}),
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
              AllOf(HasSubstr("nothing of this fits: choose a smaller model"),
                    Not(HasSubstr("which fits"))));
}

TEST_F(BadFileTest, MoreMicrobatchesThanCouldBeWrittenDown) {
  const Outcome outcome = train("run", {"--train.global_batch=2147483646"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err,
              HasSubstr("error: --train.global_batch=2147483646: train.global_batch: the token ids "
                        "of a step need "));
}

using DeviceTest = TrainingTest;

TEST_F(DeviceTest, ARunForAGpuSaysWhatIsMissing) {
  if (find_devices().problem.empty()) {
    GTEST_SKIP() << "this machine has a GPU that runs can use";
  }
  for (const char* ranks : {"--parallel.ranks=1", "--parallel.ranks=2"}) {
    const Outcome refused = train("run", {"--train.steps=4", "--run.device=cuda", ranks});
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("run.device: found \"cuda\", but "));
  }
  const Outcome automatic = train("run", {"--train.steps=4", "--run.device=auto"});
  EXPECT_EQ(automatic.code, 0);
  EXPECT_THAT(automatic.err, HasSubstr("run.device = \"auto\": on the CPU, since "));

  // So does the use of what was trained.
  const std::vector<std::string> generate = {"generate", "run", "--prompt=a", "--tokens=2"};
  const std::vector<std::string> eval = {"eval", "run", "--data=corpus.txt"};
  for (const auto& [command, option] :
       {std::pair{generate, "--device="}, std::pair{eval, "--run.device="}}) {
    const auto on = [&](const char* device) {
      std::vector<std::string> arguments = command;
      arguments.push_back(std::string(option) + device);
      return tessera(arguments);
    };
    const Outcome refused = on("cuda");
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err,
                HasSubstr(std::string(option) + "cuda: run.device: found \"cuda\", but "));
    const Outcome taken = on("auto");
    EXPECT_EQ(taken.code, 0) << taken.err;
    EXPECT_THAT(taken.err, HasSubstr("run.device = \"auto\": on the CPU, since "));
  }
}

// Not with --force either: nobody means it.
TEST_F(TrainingTest, NoOutputReplacesAnInput) {
  ASSERT_EQ(train("run", {"--train.steps=4"}).code, 0);
  write_test_file(path("choices.jsonl"), "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"]}\n");
  write_test_file(path("prompts.jsonl"), "{\"prompt\": \"a\"}\n");
  std::filesystem::create_symlink("prompts.jsonl", path("link.jsonl"));
  std::filesystem::copy_file(path("corpus.txt"), path("set.bin"));
  for (const auto& [command, file] :
       {std::pair("eval run --choices choices.jsonl -o ./choices.jsonl", "choices.jsonl"),
        std::pair("generate run --prompts prompts.jsonl --output link.jsonl", "prompts.jsonl"),
        std::pair("tokenizer train corpus.txt --vocab 300 -o corpus.txt --force", "corpus.txt"),
        std::pair("data tokenize set.bin --format text --tokenizer tokenizer.json -o set --force",
                  "set.bin"),
        std::pair("report run -o run/config.toml", "run/config.toml"),
        std::pair("report run -o run/metrics.jsonl", "run/metrics.jsonl")}) {
    const std::string before = read_file(path(file));
    const Outcome outcome = shell(format("exec \"$tessera\" {}", command));
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_THAT(outcome.err, HasSubstr("output")) << command;
    EXPECT_EQ(read_file(path(file)), before) << command;
  }
  ASSERT_EQ(tessera({"report", "run", "-o", "page.html"}).code, 0);
  EXPECT_EQ(tessera({"report", "run", "-o", "page.html"}).code, 0) << "a report is made anew";
}

// Whatever a command reads may be a named pipe, which nobody writes.
TEST_F(TrainingTest, NoCommandWaitsForAPipe) {
  ASSERT_EQ(train("run", {"--train.steps=4"}).code, 0);
  ASSERT_EQ(shell("mkfifo pipe && mkdir weights && mkfifo weights/config.json && mkdir planted && "
                  "mkfifo planted/config.toml && echo '{\"prompt\": \"a\"}' >prompts.jsonl && "
                  "echo '{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"]}' >choices.jsonl")
                .code,
            0);
  for (const std::string command : {"train pipe",
                                    "train run.toml --data.files=pipe",
                                    "train run.toml --tokenizer.path=pipe",
                                    "train run.toml --cluster.file=pipe",
                                    "train run.toml --checkpoint.resume=pipe",
                                    "train run.toml --run.dir=tuned --model.weights=weights",
                                    "explain pipe",
                                    "eval run --data pipe",
                                    "eval run --choices pipe",
                                    "eval pipe --data corpus.txt",
                                    "generate run --prompt-file pipe",
                                    "generate run --prompts pipe",
                                    "generate pipe",
                                    "data inspect pipe",
                                    "data inspect corpus.txt --tokenizer pipe",
                                    "data tokenize pipe --tokenizer tokenizer.json -o out",
                                    "tokenizer train pipe --vocab 300 -o made.json",
                                    "tokenizer inspect pipe",
                                    "tokenizer encode tokenizer.json pipe",
                                    "tokenizer decode tokenizer.json --file pipe",
                                    "checkpoint inspect pipe",
                                    "checkpoint verify pipe",
                                    "checkpoint export pipe made",
                                    "checkpoint import weights -o made",
                                    "report pipe",
                                    // Nor does what they write.
                                    "train run.toml --run.dir=planted",
                                    "eval run --choices choices.jsonl -o pipe",
                                    "generate run --prompts prompts.jsonl --output pipe",
                                    "tokenizer train corpus.txt --vocab 300 -o pipe --force",
                                    "report run -o pipe"}) {
    const Outcome outcome = shell("timeout 20 \"$tessera\" " + command);
    EXPECT_THAT(outcome.code, testing::AnyOf(2, 3)) << command << ": " << outcome.err;
    EXPECT_THAT(last_line(outcome.err), AllOf(StartsWith("error: "), HasSubstr("pipe"))) << command;
  }
}

}  // namespace
}  // namespace tessera
