#include "tessera/config/config.h"

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/config/schema.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// The message of the kInvalidConfig error that `body` must throw.
std::string config_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig) << error.what();
    return error.message();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::string parse_error(std::string_view text) {
  return config_error([&] { parse_run_config(text, "run.toml"); });
}

std::string override_error(std::string_view override) {
  RunConfig config;
  return config_error([&] { apply_override(config, override); });
}

RunConfig with_override(std::string_view override) {
  RunConfig config;
  apply_override(config, override);
  return config;
}

// The smallest config that is valid.
RunConfig valid_config() {
  RunConfig config;
  config.run.dir = "runs/test";
  config.model.flavor = "debug";
  config.tokenizer.path = "tokenizer.json";
  config.data.files = {"a.txt"};
  return config;
}

// valid_config() without a flavor.
RunConfig explicit_config() {
  RunConfig config = valid_config();
  config.model.flavor.clear();
  config.model.dim = 64;
  config.model.layers = 2;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.ffn = 128;
  config.model.vocab = 300;
  return config;
}

// The message of validate() after `change`.
std::string invalid(RunConfig config, const std::function<void(RunConfig&)>& change) {
  validate(config);
  change(config);
  return config_error([&] { validate(config); });
}

TEST(ParseConfig, ReadsEveryKindOfValue) {
  const RunConfig config = parse_run_config(R"(
[run]
dir = "runs/a"
seed = 7
[model]
dim = 0x40
tied = true
[data]
files = ["a.txt", 'b "2".txt']
document_separator = "\n\n"
shuffle = false
[train]
dtype = "bf16"
logits = "bf16"
[optimizer]
lr = 1
betas = [0, 0.99]
moments = "bf16"
gradients = "bf16"
[schedule]
decay = "cosine"
)",
                                            "run.toml");
  RunConfig expected;
  expected.run = {.dir = "runs/a", .seed = 7};
  expected.model.dim = 64;
  expected.model.tied = true;
  expected.data.files = {"a.txt", "b \"2\".txt"};
  expected.data.document_separator = "\n\n";
  expected.data.shuffle = false;
  expected.train.dtype = DType::kBF16;
  expected.train.logits = DType::kBF16;
  expected.optimizer.lr = 1.0;
  expected.optimizer.betas = {0.0, 0.99};
  expected.optimizer.moments = DType::kBF16;
  expected.optimizer.gradients = DType::kBF16;
  expected.schedule.decay = Decay::kCosine;
  EXPECT_EQ(config, expected);
}

TEST(ParseConfig, ReadsTablesOfSources) {
  const RunConfig config = parse_run_config(R"(
[data]
format = "jsonl"
[[data.sources]]
files = ["a.jsonl"]
weight = 3
[[data.sources]]
files = ["b.idx", "c"]
format = "megatron"
)",
                                            "run.toml");
  const std::vector<DataSource> expected = {
      {.files = {"a.jsonl"}, .weight = 3.0},
      {.files = {"b.idx", "c"}, .format = DataFormat::kMegatron}};
  EXPECT_EQ(config.data.sources, expected);
  const std::vector<DataSource> sources = data_sources(config.data);
  EXPECT_EQ(sources[0].format, DataFormat::kJsonl);
  EXPECT_EQ(sources[0].field, "text");
  EXPECT_EQ(sources[1].format, DataFormat::kMegatron);
  EXPECT_EQ(with_override("--data.sources=[{files = ['a.jsonl'], weight = 3}, {files = ['b.idx', "
                          "'c'], format = 'megatron'}]")
                .data.sources,
            expected);
}

TEST(ParseConfig, ErrorsInTablesNameTheirPlace) {
  EXPECT_EQ(parse_error("[[data.sources]]\nfiles = [\"a\"]\n[[data.sources]]\n  fils = [\"b\"]\n"),
            "run.toml:4:3: unknown key \"data.sources.fils\"; did you mean \"files\"?");
  EXPECT_EQ(parse_error("[data]\nsources = [{files = [\"a\"], weight = 0}]\n"),
            "run.toml:2:37: data.sources.weight: found integer 0, expected number above 0");
  EXPECT_EQ(parse_error("[data]\nsources = [3]\n"),
            "run.toml:2:11: data.sources: found integer 3, expected list of tables");
  EXPECT_EQ(override_error("--data.sources=[{weigth = 1}]"),
            "--data.sources=[{weigth = 1}]: data.sources: unknown key \"data.sources.weigth\"; did "
            "you mean \"weight\"?");
}

TEST(ParseConfig, EmptyFileGivesDefaults) {
  EXPECT_EQ(parse_run_config("", "x"), RunConfig{});
}

TEST(ParseConfig, UnknownNames) {
  EXPECT_EQ(parse_error("[train]\nsteps = 3\n  stepz = 4\n"),
            "run.toml:3:3: unknown key \"train.stepz\"; did you mean \"steps\"?");
  EXPECT_EQ(parse_error("[train]\nsequence_length = 4\n"),
            "run.toml:2:1: unknown key \"train.sequence_length\"; did you mean "
            "\"data.sequence_length\"?");
  EXPECT_EQ(parse_error("[train]\nxylophone = 4\n"),
            "run.toml:2:1: unknown key \"train.xylophone\"");
  EXPECT_EQ(parse_error("\n[optimiser]\nlr = 4\n"),
            "run.toml:2:2: unknown section \"optimiser\"; did you mean \"optimizer\"?");
}

// Whoever made it has them.
TEST(ParseConfig, KeysOfANewerVersionAreSaidToBe) {
  const std::string line = "# Written by Tessera ";
  const std::string rest = "\n[train]\nxylophone = 4\n";
  const std::string unknown = "run.toml:3:1: unknown key \"train.xylophone\"";
  for (const char* const newer : {"99.0.0", "0.99", "1000"}) {
    EXPECT_THAT(parse_error(line + newer + rest),
                StartsWith(unknown + " (run.toml was written by Tessera " + newer +
                           ", which is newer than this "));
  }
  for (const char* const not_newer : {"0.0.1", "", "x"}) {
    EXPECT_EQ(parse_error(line + not_newer + rest), unknown);
  }
  EXPECT_THAT(to_toml(valid_config()), StartsWith(line));
}

// Keys that would change nothing yet are refused, not ignored.
TEST(ParseConfig, RefusesWhatDoesNotExistYet) {
  EXPECT_EQ(parse_error("[parallel]\npipeline = 2\n"),
            "run.toml:2:1: unknown key \"parallel.pipeline\"");
  EXPECT_EQ(parse_error("[device]\nname = \"cuda\"\n"), "run.toml:1:2: unknown section \"device\"");
}

TEST(ParseConfig, WrongTypes) {
  EXPECT_EQ(parse_error("[train]\nsteps = \"many\"\n"),
            "run.toml:2:9: train.steps: found string \"many\", expected integer from 1 to "
            "2147483647");
  EXPECT_EQ(parse_error("[train]\nsteps = 1.5\n"),
            "run.toml:2:9: train.steps: found number 1.5, expected integer from 1 to 2147483647");
  EXPECT_EQ(parse_error("[run]\ndir = 3\n"),
            "run.toml:2:7: run.dir: found integer 3, expected path");
  EXPECT_EQ(parse_error("[data]\nshuffle = 1\n"),
            "run.toml:2:11: data.shuffle: found integer 1, expected true or false");
  EXPECT_EQ(parse_error("[data]\nfiles = \"a.txt\"\n"),
            "run.toml:2:9: data.files: found string \"a.txt\", expected list of paths");
  EXPECT_EQ(parse_error("[data]\nfiles = [\"a.txt\", true]\n"),
            "run.toml:2:9: data.files: found boolean true, expected list of paths");
  EXPECT_EQ(parse_error("[optimizer]\nlr = [1]\n"),
            "run.toml:2:6: optimizer.lr: found list [1], expected number above 0");
  EXPECT_EQ(parse_error("[optimizer]\nlr = 2024-01-01\n"),
            "run.toml:2:6: optimizer.lr: found a date, expected number above 0");
  EXPECT_EQ(parse_error("[train.steps]\nx = 1\n"),
            "run.toml:1:1: train.steps: found a table, expected integer from 1 to 2147483647");
  EXPECT_EQ(parse_error("train = 3\n"),
            "run.toml:1:1: train: found integer, expected a section [train]");
}

TEST(ParseConfig, Ranges) {
  EXPECT_EQ(parse_error("[train]\nsteps = 0\n"),
            "run.toml:2:9: train.steps: found integer 0, expected integer from 1 to 2147483647");
  EXPECT_EQ(parse_error("[run]\nseed = -1\n"),
            "run.toml:2:8: run.seed: found integer -1, expected integer, at least 0");
  EXPECT_EQ(parse_error("[optimizer]\nlr = 0.0\n"),
            "run.toml:2:6: optimizer.lr: found number 0.0, expected number above 0");
  EXPECT_EQ(parse_error("[optimizer]\nlr = inf\n"),
            "run.toml:2:6: optimizer.lr: found number inf, expected number above 0");
  EXPECT_EQ(parse_error("[optimizer]\nclip = nan\n"),
            "run.toml:2:8: optimizer.clip: found number nan, expected number, at least 0");
  EXPECT_EQ(parse_error("[optimizer]\nbetas = [0.9, 1.0]\n"),
            "run.toml:2:9: optimizer.betas: found number 1.0, expected number from 0 to below 1");
  EXPECT_EQ(parse_error("[optimizer]\nbetas = [0.9]\n"),
            "run.toml:2:9: optimizer.betas: found list [0.9], expected list of two, each a number "
            "from 0 to below 1");
  EXPECT_EQ(parse_error("[schedule]\nfloor = 1.5\n"),
            "run.toml:2:9: schedule.floor: found number 1.5, expected number from 0 to 1");
  EXPECT_EQ(parse_error("[train]\ndtype = \"f16\"\n"),
            "run.toml:2:9: train.dtype: found string \"f16\", expected \"f32\" or \"bf16\"");
  EXPECT_EQ(
      parse_error("[model]\nflavor = \"5B\"\n"),
      "run.toml:2:10: model.flavor: found string \"5B\", expected \"\" or \"debug\" or \"1B\" or "
      "\"3B\" or \"8B\" or \"70B\" or \"405B\" or \"tiny\" or \"124M\" or \"350M\" or \"774M\" or "
      "\"1558M\" or \"20B\" or \"0.5B\" or \"1.5B\" or \"7B\" or \"0.6B\" or \"1.7B\" or "
      "\"4B\" or \"14B\" or \"32B\" or \"7B-v0.1\" or \"nemo\" or "
      "\"mini-4k\" or \"13B\" or \"2B\" or \"9B\" or \"27B\" or \"270M\" or \"12B\"");
  EXPECT_EQ(parse_error("[model]\nname = \"bert\"\n"),
            "run.toml:2:8: model.name: found string \"bert\", expected \"llama3\" or \"gpt2\" or "
            "\"neox\" or \"qwen2\" or \"qwen3\" or \"mistral\" or \"phi3\" or \"olmo2\" or "
            "\"gemma2\" or \"gemma3\"");
}

TEST(ParseConfig, SyntaxErrorsNameThePlace) {
  EXPECT_THAT(parse_error("[train]\nsteps = = 3\n"), HasSubstr("run.toml:2:9: "));
  EXPECT_THAT(parse_error("[train]\nsteps = 3\nsteps = 4\n"), HasSubstr("run.toml:3:"));
  EXPECT_THAT(parse_error("[run]\ndir = \"\xff\"\n"), HasSubstr("run.toml:2:"));
}

TEST(Override, ScalarsAndWords) {
  EXPECT_EQ(with_override("--train.steps=12").train.steps, 12);
  EXPECT_EQ(with_override("--optimizer.lr=3e-3").optimizer.lr, 3e-3);
  EXPECT_EQ(with_override("--data.shuffle=false").data.shuffle, false);
  EXPECT_EQ(with_override("--model.tied=true").model.tied, true);
  EXPECT_EQ(with_override("--train.dtype=bf16").train.dtype, DType::kBF16);
  EXPECT_THAT(with_override("--optimizer.betas=[0.8, 0.9]").optimizer.betas, ElementsAre(0.8, 0.9));
}

TEST(Override, Strings) {
  EXPECT_EQ(with_override("--run.dir=runs/a b").run.dir, "runs/a b");
  EXPECT_EQ(with_override("--run.dir=123").run.dir, "123");
  EXPECT_EQ(with_override("--run.dir=").run.dir, "");
  EXPECT_EQ(with_override("--sample.prompt=a = b.c").sample.prompt, "a = b.c");
  EXPECT_EQ(with_override("--sample.prompt=say \"hi\" \\n").sample.prompt, "say \"hi\" \\n");
  EXPECT_EQ(with_override("--sample.prompt=\"tab\\there \\\"q\\\"\"").sample.prompt,
            "tab\there \"q\"");
  EXPECT_EQ(with_override("--sample.prompt='it \"is\"'").sample.prompt, "it \"is\"");
}

TEST(Override, Lists) {
  EXPECT_THAT(with_override("--data.files=a, b.txt").data.files, ElementsAre("a, b.txt"));
  EXPECT_THAT(with_override("--data.files=\"[x].txt\"").data.files, ElementsAre("[x].txt"));
  EXPECT_THAT(with_override("--data.files=[\"a.txt\", 'b \"2\".txt']").data.files,
              ElementsAre("a.txt", "b \"2\".txt"));
  EXPECT_THAT(with_override("--data.files=[]").data.files, ElementsAre());
}

TEST(Override, Errors) {
  EXPECT_EQ(override_error("--train.steps=abc"),
            "--train.steps=abc: train.steps: found abc, which is not a TOML value, expected "
            "integer from 1 to 2147483647");
  EXPECT_EQ(override_error("--train.steps=1\ntrain=2"),
            "--train.steps=1\ntrain=2: train.steps: found 1\ntrain=2, which is not a TOML value, "
            "expected integer from 1 to 2147483647");
  EXPECT_EQ(override_error("--train.steps=0"),
            "--train.steps=0: train.steps: found integer 0, expected integer from 1 to 2147483647");
  EXPECT_EQ(override_error("--optimizer.lr={a=1}"),
            "--optimizer.lr={a=1}: optimizer.lr: found a table, expected number above 0");
  EXPECT_EQ(override_error("--data.files=[\"a\""),
            "--data.files=[\"a\": data.files: found [\"a\", which is not a TOML value, expected "
            "list of paths");
  EXPECT_EQ(override_error("--data.files=[1]"),
            "--data.files=[1]: data.files: found integer 1, expected list of paths");
  EXPECT_EQ(override_error("--run.dir=\"x"),
            "--run.dir=\"x: run.dir: found \"x, which is not a TOML value, expected path");
  EXPECT_EQ(override_error("--run.dir=\xff"),
            "--run.dir=\xff: run.dir: found bytes that are not UTF-8, expected path");
  EXPECT_EQ(override_error("--train.step=3"),
            "--train.step=3: unknown key \"train.step\"; did you mean \"steps\"?");
  EXPECT_EQ(override_error("--trian.steps=3"),
            "--trian.steps=3: unknown section \"trian\"; did you mean \"train\"?");
  for (const std::string bad : {"--train.steps", "--steps=3.5", "train.steps=3", "--", ""}) {
    EXPECT_EQ(override_error(bad), bad + ": expected --section.key=value");
  }
}

TEST(Validate, Paths) {
  EXPECT_EQ(invalid(valid_config(), [](RunConfig& c) { c.run.dir.clear(); }),
            "run.dir: found an empty string, expected a directory");
  EXPECT_EQ(invalid(valid_config(), [](RunConfig& c) { c.data.files.clear(); }),
            "data.files: found an empty list, expected at least one file");
  EXPECT_EQ(invalid(valid_config(), [](RunConfig& c) { c.data.files.emplace_back(); }),
            "data.files: found an empty string, expected the path of a file");
  EXPECT_EQ(invalid(valid_config(), [](RunConfig& c) { c.checkpoint.resume.clear(); }),
            "checkpoint.resume: found an empty string, expected auto, none or a checkpoint's path");
}

TEST(Validate, Sources) {
  const auto with_sources = [](RunConfig& c) {
    c.data.files.clear();
    c.data.sources = {{.files = {"a"}}, {.files = {"b"}}};
  };
  RunConfig config = valid_config();
  with_sources(config);
  EXPECT_EQ(invalid(config, [](RunConfig& c) { c.data.files = {"c"}; }),
            "data.files: found files beside data.sources, expected one of the two");
  EXPECT_EQ(invalid(config, [](RunConfig& c) { c.data.sources[1].files.clear(); }),
            "data.sources: found an empty list, expected at least one file");
  EXPECT_EQ(invalid(config, [](RunConfig& c) { c.data.sources[1].weight = 1e-10; }),
            "data.sources: found a weight of 1e-10 beside a sum of 1.0000000001, expected at least "
            "a part in 10^9");
  EXPECT_EQ(invalid(config,
                    [](RunConfig& c) {
                      c.data.validation_share = 0.1;
                      c.data.validation_files = {"v"};
                    }),
            "data.validation_share: found 0.1 beside data.validation_files, expected one of the "
            "two");
  EXPECT_EQ(invalid(valid_config(), [](RunConfig& c) { c.validation.every = 10; }),
            "validation.every: found 10, and nothing to validate on: set data.validation_share or "
            "data.validation_files");
}

TEST(Validate, NamesThePlaceOfTheKey) {
  RunConfig config = parse_run_config(
      "[train]\nglobal_batch = 8\nmicrobatch = 3\n[run]\ndir = \"r\"\n[tokenizer]\npath = \"t\"\n"
      "[data]\nfiles = [\"f\"]\n",
      "run.toml");
  EXPECT_EQ(config_error([&] { validate(config); }),
            "run.toml:3:14: train.microbatch: found 3, expected a divisor of train.global_batch = "
            "8");
  apply_override(config, "--train.microbatch=5");
  EXPECT_EQ(config_error([&] { validate(config); }),
            "--train.microbatch=5: train.microbatch: found 5, expected a divisor of "
            "train.global_batch = 8");
  apply_override(config, "--train.microbatch=4");
  EXPECT_EQ(config_error([&] { validate(config); }),
            "run.toml: model.dim: found nothing, expected a value, because model.flavor and "
            "model.weights are empty");
}

TEST(LoadRunConfig, ARunDirectoryNamesItsFile) {
  const TestDirectory directory;
  const std::string path = directory.path().string();
  EXPECT_EQ(config_error([&] { load_run_config(path, {}); }),
            "run file: " + path + " is a directory, expected a file");
  write_test_file(directory.path() / "config.toml", "");
  EXPECT_THAT(config_error([&] { load_run_config(path, {}); }),
              HasSubstr("the run in it goes on with " + path + "/config.toml"));
}

// Short runs need not name a schedule: what nobody named gives way.
TEST(LoadRunConfig, SchedulesFitShortRuns) {
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "run.toml";
  write_test_file(path,
                  "[run]\ndir = \"r\"\n[tokenizer]\npath = \"t\"\n[data]\nfiles = [\"f\"]\n"
                  "[model]\nflavor = \"debug\"\n");
  const auto load = [&](const std::vector<std::string>& overrides) {
    return load_run_config(path, overrides).schedule;
  };
  EXPECT_EQ(load({"--train.steps=30"}).warmup, 6);
  EXPECT_EQ(load({"--train.steps=30"}).decay_ratio, 0.8);
  EXPECT_EQ(load({"--train.steps=1"}).warmup, 0);
  EXPECT_EQ(load({"--train.steps=50"}).warmup, 10);
  EXPECT_EQ(load({"--train.steps=30", "--schedule.warmup=15"}).decay_ratio, 0.5);
  EXPECT_EQ(load({"--train.steps=30", "--schedule.decay_ratio=1"}).warmup, 0);
  EXPECT_THAT(config_error([&] {
                load({"--train.steps=30", "--schedule.decay_ratio=0.8", "--schedule.warmup=7"});
              }),
              HasSubstr("--schedule.warmup=7: schedule.warmup: found 7, expected at most 6"));
  EXPECT_THAT(config_error([&] { load({"--train.steps=30", "--schedule.warmup=31"}); }),
              HasSubstr("schedule.warmup: found 31, expected at most 6"));
}

// A file may be tried with any number of steps.
TEST(LoadRunConfig, AWarmupOfAFileFitsShortRuns) {
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "run.toml";
  write_test_file(path,
                  "[run]\ndir = \"r\"\n[tokenizer]\npath = \"t\"\n[data]\nfiles = [\"f\"]\n"
                  "[model]\nflavor = \"debug\"\n[schedule]\nwarmup = 20\ndecay_ratio = 0.4\n");
  const auto warmup = [&](const std::string& steps) {
    return load_run_config(path, std::vector{"--train.steps=" + steps}).schedule.warmup;
  };
  EXPECT_EQ(warmup("400"), 20);
  testing::internal::CaptureStderr();
  EXPECT_EQ(warmup("30"), 18);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("run.toml:10:10: schedule.warmup: found 20, and 18 is taken: a run of "
                        "train.steps = 30"));
  EXPECT_EQ(warmup("1"), 1);
}

TEST(LoadRunConfig, RecipesTakeAnyNumberOfSteps) {
  int recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(TESSERA_SOURCE_DIR) / "configs/runs")) {
    for (const std::string steps : {"1", "2", "10", "60", "1000"}) {
      EXPECT_NO_THROW(load_run_config(entry.path(), std::vector{"--train.steps=" + steps}))
          << entry.path();
    }
    ++recipes;
  }
  EXPECT_GE(recipes, 3);
}

TEST(Validate, ModelDims) {
  EXPECT_EQ(invalid(explicit_config(), [](RunConfig& c) { c.model.heads = 5; }),
            "model.heads: found 5, expected a divisor of model.dim = 64");
  EXPECT_EQ(invalid(explicit_config(), [](RunConfig& c) { c.model.heads = 64; }),
            "model.heads: found 64, which makes heads 1 wide (model.dim = 64), expected an even "
            "width for rotary positions");
  EXPECT_EQ(invalid(explicit_config(), [](RunConfig& c) { c.model.kv_heads = 3; }),
            "model.kv_heads: found 3, expected a divisor of model.heads = 4");
  EXPECT_EQ(invalid(explicit_config(), [](RunConfig& c) { c.tokenizer.train_vocab = 301; }),
            "tokenizer.train_vocab: found 301, expected at most model.vocab = 300");
  EXPECT_EQ(invalid(explicit_config(),
                    [](RunConfig& c) {
                      c.tokenizer.train_vocab = 0;
                      c.tokenizer.train_special = {"<|x|>"};
                    }),
            "tokenizer.train_special: set, but tokenizer.train_vocab is 0, so that no tokenizer is "
            "trained: set it, too, or leave this out");
}

TEST(Validate, DimsMayBeLeftOutOnlyWithAFlavor) {
  const auto missing = [](std::optional<std::int64_t> ModelSection::* dim) {
    return invalid(explicit_config(), [=](RunConfig& c) { (c.model.*dim).reset(); });
  };
  const std::string tail =
      ": found nothing, expected a value, because model.flavor and model.weights are empty";
  EXPECT_EQ(missing(&ModelSection::dim), "model.dim" + tail);
  EXPECT_EQ(missing(&ModelSection::layers), "model.layers" + tail);
  EXPECT_EQ(missing(&ModelSection::heads), "model.heads" + tail);
  EXPECT_EQ(missing(&ModelSection::ffn), "model.ffn" + tail);
  EXPECT_EQ(missing(&ModelSection::vocab), "model.vocab" + tail);
  RunConfig config = explicit_config();
  config.model.kv_heads.reset();
  EXPECT_NO_THROW(validate(config));
}

TEST(Validate, BatchAndSchedule) {
  EXPECT_EQ(invalid(valid_config(), [](RunConfig& c) { c.train.microbatch = 3; }),
            "train.microbatch: found 3, expected a divisor of train.global_batch = 4");
  EXPECT_EQ(invalid(valid_config(), [](RunConfig& c) { c.schedule.warmup = 81; }),
            "schedule.warmup: found 81, expected at most 80: schedule.decay_ratio = 0.8 takes 320 "
            "of train.steps = 400");
  RunConfig config = valid_config();
  config.schedule.warmup = 80;
  EXPECT_NO_THROW(validate(config));
}

TEST(Validate, Degrees) {
  const auto with = [](std::int64_t ranks, std::int64_t data, std::int64_t tensor) {
    return [=](RunConfig& c) {
      c.parallel = {.ranks = ranks, .data = data, .tensor = tensor};
      c.train.global_batch = 24;
    };
  };
  EXPECT_EQ(invalid(valid_config(), with(8, 3, 2)),
            "parallel.data: found 3, which with parallel.tensor = 2 makes 6 ranks, expected "
            "parallel.ranks = 8; leave parallel.data out to take the ranks that are left");
  EXPECT_EQ(invalid(explicit_config(), with(6, 2, 3)),
            "parallel.tensor: found 3, expected a divisor of model.heads = 4");
  EXPECT_EQ(invalid(explicit_config(), with(8, 2, 4)),
            "parallel.tensor: found 4, expected a divisor of model.kv_heads = 2");
  EXPECT_EQ(invalid(valid_config(), with(5, 5, 1)),
            "train.global_batch: found 24, expected a multiple of 5: train.microbatch = 1 on each "
            "of parallel.data = 5 ranks");
  RunConfig config = valid_config();
  config.parallel = {.ranks = 6, .data = std::nullopt, .tensor = 4};
  EXPECT_EQ(config_error([&] { validate_degrees(config); }),
            "parallel.tensor: found 4, expected a divisor of parallel.ranks = 6");
}

TEST(ParseConfig, ADegreeIsANumberOrALevel) {
  EXPECT_EQ(parse_run_config("[state]\nparam = 4\n", "run.toml").state.param, "4");
  EXPECT_EQ(with_override("--state.param=node").state.param, "node");
  EXPECT_EQ(with_override("--state.param=8").state.param, "8");
  EXPECT_EQ(parse_error("[state]\nparam = 0\n"),
            "run.toml:2:9: state.param: found integer 0, expected integer, at least 1, or the name "
            "of a level");
}

TEST(LoadConfig, FileOverridesAndValidation) {
  const std::string path = testing::TempDir() + "load_config_test.toml";
  write_file_atomic(path, to_toml(valid_config()));
  const std::vector<std::string> overrides = {"--train.steps=100", "--train.steps=200"};
  EXPECT_EQ(load_run_config(path, overrides).train.steps, 200);

  const std::vector<std::string> bad = {"--train.microbatch=3"};
  EXPECT_EQ(config_error([&] { load_run_config(path, bad); }),
            "--train.microbatch=3: train.microbatch: found 3, expected a divisor of "
            "train.global_batch = 4");
  write_file_atomic(path, "[train]\nx = 1\n");
  EXPECT_EQ(config_error([&] { load_run_config(path); }), path + ":2:1: unknown key \"train.x\"");
  std::filesystem::remove(path);
  EXPECT_EQ(config_error([&] { load_run_config(path); }),
            "run file: cannot open " + path + ": No such file or directory");
}

DataSection unusual_data() {
  return {.files = {"a", "b # c", ""},
          .sources = {{.files = {"b", "c \"d\""}, .weight = 0.25, .format = DataFormat::kMegatron},
                      {.files = {"e"},
                       .weight = 3,
                       .field = "body",
                       .token_type = RawTokens::kU32,
                       .document_separator = "\n"}},
          .format = DataFormat::kJsonl,
          .field = "content",
          .token_type = RawTokens::kU32,
          .chat_template = ChatTemplateName::kChatml,
          .skip_broken = true,
          .unpacked_limit = 1000,
          .validation_share = 0.25,
          .validation_files = {"v"},
          .sequence_length = 33,
          .shuffle = false,
          .document_mask = false,
          .mask_boundary = true,
          .document_separator = "\r\n\f"};
}

// A config in which every key differs from its default.
RunConfig unusual_config() {
  RunConfig c;
  c.run = {.dir = "dir \"quoted\" \\ \x01\x7f\t\n\xc3\xa4",
           .seed = 9007199254740993,
           .threads = 3,
           .device = "auto",
           .cuda_graphs = false,
           .deterministic = false,
           .time_gemms = false};
  c.model = {.name = "gpt2",
             .flavor = "8B",
             .weights = "weights",
             .grow_vocab = true,
             .dim = 64,
             .layers = 2,
             .heads = 4,
             .kv_heads = 2,
             .head_dim = 6,
             .ffn = 96,
             .vocab = 300,
             .padded_vocab = 320,
             .positions = 40,
             .window = 5,
             .global_every = 3,
             .query_pre_attn_scalar = 13,
             .attention_softcap = 50,
             .logits_softcap = 30.5,
             .tied = false,
             .attention_bias = true,
             .exact_gelu = true,
             .parallel_residual = false,
             .rope_scaling = true,
             .rope_factor = 32,
             .rope_linear_factor = 2,
             .rope_dynamic_factor = 3,
             .rope_yarn_factor = 4,
             .rope_short_factors = {{1, 1.5}},
             .rope_long_factors = {{2.25, 1e300}},
             .rope_original_length = 64,
             .rope_scaled_length = 128,
             .rope_theta = 10000,
             .rope_local_theta = 5000,
             .rotary_fraction = 0.5,
             .norm_eps = 1.0 / 3};
  c.tokenizer = {.path = "t.json",
                 .train_vocab = 300,
                 .train_special = {"<|x|>", "<|y|>"},
                 .train_chat = "chatml",
                 .bos = {{}},
                 .eos = {{"</s>", "\"<|x|>\""}}};
  c.data = unusual_data();
  c.train = {.steps = 5,
             .global_batch = 6,
             .microbatch = 2,
             .dtype = DType::kBF16,
             .logits = DType::kBF16,
             .tf32 = true};
  c.validation = {.every = 3, .sequences = 7};
  c.lora = {.rank = 4, .alpha = 0.5, .targets = {"wq", "q_proj"}};
  c.float8 = {.recipe = Float8Recipe::kTensorwise,
              .gradients = DType::kF8E4M3,
              .skip_first = 1,
              .skip_last = 2,
              .head = true,
              .fast_accumulation = true,
              .keep_weight_codes = true};
  c.optimizer = {.name = OptimizerName::kAdamW,
                 .lr = 1e-300,
                 .betas = {0.1 + 0.2, 0.999},
                 .eps = 5e-324,
                 .weight_decay = 1e22,
                 .decay = DecayedWeights::kMatrices,
                 .clip = 100,
                 .moments = DType::kBF16,
                 .gradients = DType::kBF16};
  c.schedule = {.warmup = 1, .decay_ratio = 0.1, .decay = Decay::kSqrt, .floor = 1};
  c.parallel = {.ranks = 8, .data = 4, .tensor = 2, .sequence_parallel = false};
  c.state = {.preset = "ddp",
             .param = "2",
             .secondary = "1",
             .secondary_use = SecondaryUse::kBackward,
             .grad = "node",
             .optimizer = "cluster",
             .wire_param = "int8",
             .wire_grad = "int4",
             .wire_update = "bf16",
             .wire_block = 64};
  c.comm = {.deadline_seconds = 2.5,
            .reduction = Reduction::kNative,
            .overlap = false,
            .overlap_layers = 2};
  c.cluster = {.file = "c.toml"};
  c.memory = {.recompute = Recompute::kFull, .limit_bytes = 1LL << 40};
  c.checkpoint = {.every = 7,
                  .every_minutes = 2.5,
                  .keep = 0,
                  .keep_best = false,
                  .async = false,
                  .resume = "none",
                  .fall_back = false,
                  .deadline_seconds = 90};
  c.log = {.every = 1, .tensorboard = false};
  c.sample = {.prompt = "p", .tokens = 3, .temperature = 0};
  c.passes = {.fuse = false, .group_gemms = false, .gelu_products = false, .dump = "d"};
  return c;
}

TEST(ToToml, ParsesBackToAnEqualConfig) {
  RunConfig expanded = unusual_config();
  for (const ConfigSection& section : schema()) {
    for (const ConfigKey& key : section.keys) {
      if (key.expected == "path") {
        key.set(expanded, {std::string("/x/$$HOME/$${x}/$$$$/$5")});
      }
    }
  }
  expanded.data.sources[0].files = {"$HOME", "$(x)"};
  expanded.data.validation_files = {"a$$"};
  EXPECT_EQ(expanded.run.dir, "/x/$HOME/${x}/$$/$5");
  for (const RunConfig& config : {RunConfig{}, valid_config(), unusual_config(), expanded}) {
    EXPECT_EQ(parse_run_config(to_toml(config), "resolved"), config);
  }
}

// Each key that is a path, in files and in overrides; text stays as it is.
TEST(Paths, AreExpanded) {
  ::setenv("TESSERA_TEST_PLACE", "/scratch/a", 1);
  ::unsetenv("TESSERA_TEST_UNSET");
  RunConfig config = parse_run_config(R"(
[run]
dir = "$TESSERA_TEST_PLACE/x"
[tokenizer]
path = "${TESSERA_TEST_PLACE}/tok.json"
[data]
files = ["$TESSERA_TEST_PLACE/a.txt", "b.txt"]
document_separator = "$TESSERA_TEST_UNSET"
[sample]
prompt = "~/$TESSERA_TEST_UNSET"
)",
                                      "run.toml");
  EXPECT_EQ(config.run.dir, "/scratch/a/x");
  EXPECT_EQ(config.tokenizer.path, "/scratch/a/tok.json");
  EXPECT_EQ(config.data.files, (std::vector<std::string>{"/scratch/a/a.txt", "b.txt"}));
  EXPECT_EQ(config.data.document_separator, "$TESSERA_TEST_UNSET");
  EXPECT_EQ(config.sample.prompt, "~/$TESSERA_TEST_UNSET");
  const RunConfig sources =
      parse_run_config("[[data.sources]]\nfiles = [\"$TESSERA_TEST_PLACE/c.txt\"]\n", "run.toml");
  EXPECT_EQ(sources.data.sources[0].files[0], "/scratch/a/c.txt");
  EXPECT_EQ(
      parse_error("[run]\ndir = \"$TESSERA_TEST_UNSET/x\"\n"),
      "run.toml:2:7: run.dir: found the path \"$TESSERA_TEST_UNSET/x\", but the environment "
      "variable TESSERA_TEST_UNSET is not set: set it, or write the path out ($$ stands for a "
      "$)");
  for (const char* key : {"run.dir",
                          "model.weights",
                          "tokenizer.path",
                          "data.files",
                          "data.validation_files",
                          "cluster.file",
                          "checkpoint.resume",
                          "passes.dump"}) {
    apply_override(config, format("--{}=$TESSERA_TEST_PLACE/o", key));
    EXPECT_THAT(to_toml(config), HasSubstr("/scratch/a/o")) << key;
    EXPECT_THAT(override_error(format("--{}=~nobody/x", key)), HasSubstr("./~nobody/x")) << key;
  }
}

// Guards the test above: what equals its default would survive a key that is not printed.
TEST(ToToml, UnusualConfigLeavesNoDefault) {
  for (const ConfigSection& section : schema()) {
    for (const ConfigKey& key : section.keys) {
      const std::string name = format("{}.{}", section.name, key.name);
      const bool has_one_value = name == "optimizer.name";
      EXPECT_EQ(key.get(unusual_config()) == key.get(RunConfig{}), has_one_value) << name;
    }
  }
}

TEST(ToToml, LeavesOutEmptyOptionals) {
  RunConfig config = unusual_config();
  EXPECT_THAT(to_toml(config), HasSubstr("tied = false\n"));
  config.model.tied.reset();
  EXPECT_THAT(to_toml(config), Not(HasSubstr("tied")));
}

TEST(Schema, TomlIsAValidFileOfDefaults) {
  EXPECT_EQ(parse_run_config(schema_toml(), "schema"), RunConfig{});
  EXPECT_THAT(schema_toml(),
              HasSubstr("# Optimizer steps. (integer from 1 to 2147483647)\n"
                        "steps = 400\n"));
}

// Set TESSERA_UPDATE_GOLDEN=1 to rewrite the page.
TEST(Schema, ReferencePageIsUpToDate) {
  const std::filesystem::path page = std::filesystem::path(TESSERA_SOURCE_DIR) / "docs/config.md";
  if (std::getenv("TESSERA_UPDATE_GOLDEN") != nullptr) {
    write_file_atomic(page, schema_markdown());
  }
  EXPECT_EQ(read_file(page), schema_markdown()) << "TESSERA_UPDATE_GOLDEN=1 rewrites the page";
}

}  // namespace
}  // namespace tessera
