// Bad input: the exit code, a message that says what is wrong and where, and nothing lost.

#include <filesystem>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/devices.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
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
