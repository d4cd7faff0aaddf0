#include "tessera/cli/cli.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/cli/build_info.h"
#include "tessera/config/config.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

Outcome run(const std::vector<const char*>& arguments) {
  std::vector<const char*> argv = {"tessera"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = run_cli(static_cast<int>(argv.size()), argv.data());
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

// Checks exit code and the one line on stderr; nothing may be on stdout.
void expect_error(std::initializer_list<const char*> arguments,
                  int code,
                  const std::string& message) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.code, code);
  EXPECT_EQ(outcome.err, "error: " + message + "\n");
  EXPECT_THAT(outcome.out, IsEmpty());
}

// A directory of its own, removed at the end.
class CliFiles : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }

  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string write(const std::string& name, const std::string& text) {
    const std::string path = directory_ / name;
    std::ofstream(path) << text;
    return path;
  }

  std::string path(const std::string& name) { return directory_ / name; }

 private:
  std::filesystem::path directory_ = std::filesystem::path(testing::TempDir()) / "tessera_cli_test";
};

TEST(Cli, Version) {
  const Outcome outcome = run({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, describe_build() + "\n");
  EXPECT_THAT(outcome.out,
              AllOf(StartsWith("tessera " + std::string(build_info().version) + "\n"),
                    HasSubstr("\ncommit    " + std::string(build_info().commit) + "\n"),
                    HasSubstr("\noneDNN    ")));
}

TEST(Cli, EveryCommandHasHelp) {
  for (const char* command :
       {"train", "explain", "generate", "report", "tokenizer", "config", "doctor"}) {
    const Outcome outcome = run({command, "--help"});
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_THAT(outcome.out, HasSubstr("Usage: tessera " + std::string(command))) << command;
    EXPECT_THAT(run({"--help"}).out, HasSubstr("\n  " + std::string(command))) << command;
  }
  EXPECT_THAT(run({"tokenizer", "train", "--help"}).out, HasSubstr("--vocab"));
  EXPECT_THAT(run({"train", "--help"}).out,
              AllOf(HasSubstr("RUN.toml"), HasSubstr("--section.key=value")));
}

TEST(Cli, ConfigPrintsTheSchema) {
  const Outcome outcome = run({"config"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, schema_toml());
}

// From the parser and the schema: what they gain is here by itself.
TEST(Cli, CompletionKnowsCommandsOptionsAndKeys) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const Outcome outcome = run({"completion", shell.c_str()});
    EXPECT_EQ(outcome.code, 0) << shell;
    const bool is_fish = shell == "fish";
    for (const std::string command : {"explain", "tokenizer", "import"}) {
      EXPECT_THAT(outcome.out, HasSubstr(command)) << shell;
    }
    for (const std::string option : {"target", "vocab"}) {
      EXPECT_THAT(outcome.out, HasSubstr((is_fish ? "-l " : "--") + option)) << shell;
    }
    for (const std::string key : {"train.steps", "model.rope_long_factors"}) {
      EXPECT_THAT(outcome.out, HasSubstr("--" + key + "=")) << shell;
    }
  }
  const Outcome other = run({"completion", "tcsh"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("found shell \"tcsh\", expected bash, zsh or fish"));
}

// As bash calls the function for words that are typed.
TEST_F(CliFiles, BashCompletes) {
  const std::string script = run({"completion", "bash"}).out;
  const auto completed = [&](const std::string& words) {
    const std::string file =
        write("test.bash",
              format("{}\nCOMP_WORDS=({})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n_tessera\n"
                     "printf '%s ' \"${{COMPREPLY[@]}}\" >'{}'\n",
                     script,
                     words,
                     path("out")));
    EXPECT_EQ(std::system(format("bash '{}'", file).c_str()), 0);
    return read_file(path("out"));
  };
  EXPECT_EQ(completed("tessera tra"), "train ");
  EXPECT_EQ(completed("tessera train --train.st"), "--train.steps= ");
  EXPECT_EQ(completed("tessera tokenizer ''"), "train encode decode inspect ");
  EXPECT_EQ(completed("tessera tokenizer train --vo"), "--vocab= ");
  EXPECT_EQ(completed("tessera explain run.toml --prog"), "--program ");
  EXPECT_EQ(completed("tessera eval --choi"), "--choices= ");
  EXPECT_EQ(completed("tessera eval --he"), "--help ");
  EXPECT_EQ(completed("tessera eval --train.st"), " ");  // it refuses this key
  EXPECT_EQ(completed("tessera train ru"), " ");         // a file: bash's own
}

TEST(Cli, ManualHasAPageForEachCommandAndTheKeys) {
  const Outcome names = run({"manual"});
  EXPECT_THAT(names.out, HasSubstr("tessera-tokenizer-train\n"));
  std::istringstream lines(names.out);
  for (std::string page; std::getline(lines, page);) {
    const Outcome outcome = run({"manual", page.c_str()});
    EXPECT_EQ(outcome.code, 0) << page;
    EXPECT_THAT(outcome.out, StartsWith(".TH " + page + " ")) << page;
    EXPECT_THAT(outcome.out, HasSubstr("\n.SH NAME\n")) << page;
  }
  EXPECT_THAT(run({"manual", "tessera-explain"}).out,
              HasSubstr("\\fB\\-\\-target\\fR \\fINAME\\fR\n"));
  EXPECT_THAT(run({"manual", "tessera-run"}).out, HasSubstr("\\fBsteps\\fR (\\fIinteger"));
  const Outcome unknown = run({"manual", "tessera-fly"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("no manual page is called \"tessera-fly\", expected one of"));
}

TEST(Cli, DoctorDescribesTheMachine) {
  const Outcome outcome = run({"doctor"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* fact :
       {"tessera ", "\ncpu ", "\ncores ", "\nkernels ", "\nbf16 ", "\nmemory ", "\ndisk "}) {
    EXPECT_THAT(outcome.out, HasSubstr(fact));
  }
}

TEST(Cli, BadUsage) {
  expect_error({}, 2, "expected a command (see tessera --help)");
  expect_error({"trian", "run.toml"},
               2,
               "unknown command \"trian\"; did you mean \"train\"? (see tessera --help)");
  expect_error(
      {"train"},
      2,
      "a run needs a model (model.flavor, model.weights, or model.dim, layers, heads, ffn "
      "and vocab), data (data.files or data.sources), a tokenizer (tokenizer.path, or "
      "tokenizer.train_vocab to train one) and a directory of its own (run.dir): say so in "
      "a run file, or as in --model.flavor=debug --data.files=a.txt "
      "--tokenizer.train_vocab=2048 --run.dir=runs/a");
  expect_error(
      {"train", "--model.flavor", "debug"}, 2, "--model.flavor: expected --section.key=value");
  expect_error(
      {"config", "x"}, 2, "The following argument was not expected: x (see tessera config --help)");
  expect_error({"tokenizer"}, 2, "A subcommand is required (see tessera tokenizer --help)");
  expect_error({"tokenizer", "train", "a.txt"},
               2,
               "--vocab is required (see tessera tokenizer train --help)");
  expect_error(
      {"tokenizer", "train", "a.txt", "--vocab", "0"},
      2,
      "--vocab: Value 0 not in range 1 to 2147483647 (see tessera tokenizer train --help)");
}

TEST(Cli, BenchOptions) {
  for (const std::initializer_list<const char*> arguments :
       {std::initializer_list<const char*>{"bench"},
        {"bench", "calibrate", "--rounds=2"},
        {"bench", "calibrate", "--ranks=none"},
        {"bench", "calibrate", "--write=no-such-folder/machine.toml"}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, StartsWith("error: "));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

TEST(Cli, GenerateOptions) {
  const std::string tail = " (see tessera generate --help)";
  expect_error({"generate"}, 2, "CHECKPOINT is required" + tail);
  expect_error({"generate", "runs/a", "--prompt=a", "--tokenz=3"},
               2,
               "The following argument was not expected: --tokenz=3" + tail);
  for (const char* key : {"--parallel.pipeline=2", "--train.lr=0.1"}) {
    expect_error({"generate", "runs/a", "--prompt=a", key},
                 2,
                 std::string(key) +
                     ": generate runs on one rank, whatever the run was trained on, and takes no "
                     "keys of a run: leave it out" +
                     tail);
  }
  expect_error({"generate", "runs/a", "--tokens", "0"},
               2,
               "--tokens: Value 0 not in range 1 to 2147483647" + tail);
  expect_error({"generate", "runs/a", "--top-k", "-1"},
               2,
               "--top-k: Value -1 not in range 0 to 2147483647" + tail);
  expect_error({"generate", "runs/a", "--top-p", "1.5"},
               2,
               "--top-p: Value 1.5 not in range 0.000000 to 1.000000" + tail);
  expect_error({"generate", "runs/a", "--temperature", "nan"},
               2,
               "--temperature: Value nan not in range 0.000000 to 1000.000000" + tail);
  expect_error({"generate", "runs/a", "--temperature=-0.5"},
               2,
               "--temperature: Value -0.5 not in range 0.000000 to 1000.000000" + tail);
  expect_error({"generate", "runs/a", "--top-p", "-NaN"},
               2,
               "--top-p: Value -NaN not in range 0.000000 to 1.000000" + tail);
  expect_error({"generate", "runs/a", "--min-p", "-0.1"},
               2,
               "--min-p: Value -0.1 not in range 0.000000 to 1.000000" + tail);
  expect_error({"generate", "runs/a", "--repetition-penalty", "0"},
               2,
               "--repetition-penalty: Value 0 not in range 0.010000 to 100.000000" + tail);
  expect_error({"generate", "runs/a", "--stop", ""}, 2, "--stop: The text is empty" + tail);
  expect_error({"generate", "runs/a", "--output", "x"}, 2, "--output requires --prompts" + tail);
  for (const std::string seed : {"-1", "abc"}) {
    expect_error({"generate", "runs/a", "--seed", seed.c_str()},
                 2,
                 format("--seed: Value {} not in range 0 to 9223372036854775807", seed) + tail);
  }
}

TEST_F(CliFiles, BadRunFile) {
  expect_error({"train", "missing.toml"},
               2,
               "run file: cannot open missing.toml: No such file or directory");
  const std::string bad = write("bad.toml", "[train]\nstepz = 3\n");
  for (const char* command : {"train", "explain"}) {
    expect_error({command, bad.c_str()},
                 2,
                 bad + ":2:1: unknown key \"train.stepz\"; did you mean \"steps\"?");
  }
}

TEST_F(CliFiles, OverridesReachTheConfig) {
  const std::string good = write("good.toml", "[run]\ndir = \"r\"\n");
  expect_error({"train", good.c_str(), "--train.steps=x y"},
               2,
               "--train.steps=x y: train.steps: found x y, which is not a TOML value, expected "
               "integer from 1 to 2147483647");
  expect_error({"explain", "--trian.steps=3", good.c_str()},
               2,
               "--trian.steps=3: unknown section \"trian\"; did you mean \"train\"?");
  expect_error({"train", good.c_str(), "--verbose"}, 2, "--verbose: expected --section.key=value");
  expect_error(
      {"train", good.c_str(), "other.toml"}, 2, "other.toml: expected --section.key=value");
  // A message keeps its lines.
  expect_error({"train", good.c_str(), "--train.steps=1\n2"},
               2,
               "--train.steps=1\n2: train.steps: found 1\n2, which is not a TOML value, expected "
               "integer from 1 to 2147483647");
  expect_error({"train", good.c_str(), "--data.files=[\"a.txt\"]", "--tokenizer.path=t"},
               2,
               good +
                   ": a run needs a model (model.flavor, model.weights, or model.dim, layers, "
                   "heads, ffn and vocab): say so in the file, or as in --model.flavor=debug");
  expect_error(
      {"train", good.c_str(), "--data.files=[\"a.txt\"]", "--tokenizer.path=t", "--model.layers=2"},
      2,
      good +
          ": model.dim: found nothing, expected a value, because model.flavor and "
          "model.weights are empty");
}

TEST_F(CliFiles, TrainsATokenizer) {
  const std::string text = write("text.txt", "the cat and the dog and the bird");
  const std::string output = path("tokenizer.json");
  const Outcome outcome =
      run({"tokenizer", "train", text.c_str(), "--vocab", "262", "--output", output.c_str()});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith(output + ": 262 entries, trained in "));
  const Tokenizer tokenizer = Tokenizer::load(output);
  EXPECT_EQ(tokenizer.vocab_size(), 262);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the bird")), "the bird");
}

// All that are paths, in all commands; no shell has seen them.
TEST(Cli, PathsAreExpanded) {
  ::unsetenv("TESSERA_TEST_UNSET");
  constexpr const char* kUnset = "$TESSERA_TEST_UNSET/x";
  const std::vector<std::vector<const char*>> commands = {
      {"train", kUnset},
      {"explain", kUnset},
      {"generate", kUnset, "--prompt=a"},
      {"generate", "c", "--prompt-file", kUnset},
      {"generate", "c", "--prompts", kUnset},
      {"generate", "c", "--prompts=p.txt", "--output", kUnset},
      {"eval", kUnset, "--data=a.txt"},
      {"eval", "c", "--data", "a.txt", kUnset},
      {"eval", "c", "--choices", kUnset},
      {"eval", "c", "--choices=q.jsonl", "-o", kUnset},
      {"report", kUnset},
      {"report", "r", "-o", kUnset},
      {"checkpoint", "verify", kUnset},
      {"checkpoint", "inspect", kUnset},
      {"checkpoint", "export", kUnset, "out"},
      {"checkpoint", "export", "c", kUnset},
      {"checkpoint", "import", kUnset, "-o", "out"},
      {"checkpoint", "import", "hf", "-o", kUnset},
      {"tokenizer", "train", kUnset, "--vocab=300"},
      {"tokenizer", "train", "a.txt", "--vocab=300", "-o", kUnset},
      {"tokenizer", "encode", kUnset},
      {"tokenizer", "encode", "t.json", kUnset},
      {"tokenizer", "decode", kUnset},
      {"tokenizer", "decode", "t.json", "--file", kUnset},
      {"tokenizer", "inspect", kUnset},
      {"data", "tokenize", kUnset, "--tokenizer=t.json", "-o", "x"},
      {"data", "tokenize", "a.txt", "--tokenizer", kUnset, "-o", "x"},
      {"data", "tokenize", "a.txt", "--tokenizer=t.json", "-o", kUnset},
      {"data", "inspect", kUnset},
      {"data", "inspect", "a.txt", "--tokenizer", kUnset}};
  for (const std::vector<const char*>& command : commands) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 2) << testing::PrintToString(command);
    EXPECT_THAT(outcome.err, HasSubstr("TESSERA_TEST_UNSET is not set"))
        << testing::PrintToString(command);
  }
}

// A slip in the name of what is made would make a folder that nobody looks for.
TEST_F(CliFiles, OutputsAreMadeInFoldersThatExist) {
  const std::string text = write("text.txt", "the cat and the dog and the bird");
  const std::string output = path("none/x");
  for (const std::vector<const char*>& command : std::vector<std::vector<const char*>>{
           {"tokenizer", "train", text.c_str(), "--vocab=262", "-o", output.c_str()},
           {"report", "r", "-o", output.c_str()},
           {"eval", "c", "--choices=q.jsonl", "-o", output.c_str()},
           {"generate", "c", "--prompts=p.txt", "--output", output.c_str()},
           {"data", "tokenize", text.c_str(), "--tokenizer=t.json", "-o", output.c_str()},
           {"checkpoint", "export", "c", output.c_str()},
           {"checkpoint", "import", "hf", "-o", output.c_str()}}) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 2) << testing::PrintToString(command);
    EXPECT_THAT(outcome.err,
                HasSubstr(output + " is to be made in " + path("none") +
                          ", which does not exist: make that folder first"))
        << testing::PrintToString(command);
  }
  EXPECT_FALSE(std::filesystem::exists(path("none")));
}

TEST_F(CliFiles, TokenizerErrors) {
  const std::string output = path("tokenizer.json");
  const std::string missing = path("missing.txt");
  expect_error(
      {"tokenizer", "train", missing.c_str(), "--vocab", "300", "--output", output.c_str()},
      3,
      "cannot open " + missing + ": No such file or directory");
  const std::string empty = write("empty.txt", "");
  expect_error({"tokenizer", "train", empty.c_str(), "--vocab", "300", "--output", output.c_str()},
               3,
               empty + " is empty: expected text");
  const std::string text = write("text.txt", "the cat");
  expect_error({"tokenizer", "train", text.c_str(), "--vocab", "100", "--output", output.c_str()},
               2,
               "--vocab is 100, but the 256 bytes and 2 special tokens need at least 258");
  EXPECT_FALSE(std::filesystem::exists(output));
  expect_error({"tokenizer", "train", text.c_str(), "--vocab", "300", "--output", output.c_str()},
               2,
               "--vocab is 300, but the text (7 bytes) allows 5 merges only: use at most 263, or "
               "more text");
}

TEST_F(CliFiles, EncodesDecodesAndInspects) {
  const std::string text = write("text.txt", "the cat and the dog and the bird");
  const std::string output = path("tokenizer.json");
  run({"tokenizer", "train", text.c_str(), "--vocab", "262", "--output", output.c_str()});
  const Tokenizer tokenizer = Tokenizer::load(output);
  std::string ids;
  for (const std::int32_t id : tokenizer.encode("the cat and the dog and the bird")) {
    ids += (ids.empty() ? "" : " ") + std::to_string(id);
  }
  const char* file = output.c_str();
  EXPECT_EQ(run({"tokenizer", "encode", file, text.c_str()}).out, ids + "\n");
  EXPECT_EQ(run({"tokenizer", "encode", file, "--text", "zz", "--add-special"}).out, "260 89 89\n");
  EXPECT_EQ(run({"tokenizer", "encode", file, "--text", "z ", "--tokens"}).out, "89\tz\n220\tĠ\n");
  EXPECT_EQ(run({"tokenizer", "encode", file, "--text", "<|end_of_text|>", "--parse-special"}).out,
            "261\n");
  const std::string id_file = write("ids.txt", ids);
  EXPECT_EQ(run({"tokenizer", "decode", file, "--file", id_file.c_str()}).out,
            "the cat and the dog and the bird");
  EXPECT_EQ(run({"tokenizer", "decode", file, "260", "89", "261"}).out, "z");
  EXPECT_EQ(run({"tokenizer", "decode", file, "260", "89", "--keep-special"}).out,
            "<|begin_of_text|>z");
  expect_error({"tokenizer", "decode", file, "89", "262"},
               3,
               "id 1 of 2 is 262, but " + output + " has ids 0 to 261");
  expect_error({"tokenizer", "decode", file, "89", "x1"},
               3,
               "id 1 of the command line is \"x1\", expected an integer");
  const std::string facts = run({"tokenizer", "inspect", file}).out;
  EXPECT_THAT(facts,
              StartsWith("kind        byte-level BPE\nentries     262, 2 of them special\n"));
  EXPECT_THAT(facts, HasSubstr("\nbegins with 260 <|begin_of_text|>\n"));
  EXPECT_THAT(run({"tokenizer", "inspect", file, "--vocab"}).out, HasSubstr("\n220\tĠ\n"));
}

TEST_F(CliFiles, TokenizerTrainReplacesNothingUnasked) {
  const std::string text = write("text.txt", "the cat and the dog and the bird");
  const std::string output = write("tokenizer.json", "mine");
  expect_error({"tokenizer", "train", text.c_str(), "--vocab", "262", "--output", output.c_str()},
               2,
               output + " exists: choose another --output, or replace it with --force");
  EXPECT_EQ(read_file(output), "mine");
  EXPECT_EQ(run({"tokenizer",
                 "train",
                 text.c_str(),
                 "--vocab=262",
                 "--output",
                 output.c_str(),
                 "--force"})
                .code,
            0);
  EXPECT_EQ(Tokenizer::load(output).vocab_size(), 262);
}

}  // namespace
}  // namespace tessera
