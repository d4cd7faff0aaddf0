// Values against each other, and the files that configs are loaded from.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tessera/config/config.h"
#include "tessera/config/test_config.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

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

TEST(Validate, ContextRanksDivideRanksTokensAndHeads) {
  const auto error =
      [](const ParallelSection& parallel, std::int64_t length, const ContextSection& context = {}) {
        RunConfig config = valid_config();
        config.parallel = parallel;
        config.context = context;
        config.data.sequence_length = length;
        config.model.heads = 8;
        config.model.kv_heads = 4;
        config.model.dim = 64;
        return config_error([&] { validate(config); });
      };
  EXPECT_EQ(error({.ranks = 8, .data = std::nullopt, .context = 3}, 48),
            "parallel.context = 3 does not divide 8 ranks; 2, 4 or 8 do");
  EXPECT_EQ(error({.ranks = 8, .data = std::nullopt, .tensor = 2, .context = 2, .pipeline = 3}, 48),
            "parallel.pipeline = 3 does not divide the 2 that parallel.tensor = 2 and "
            "parallel.context = 2 leave of 8 ranks; 2 does");
  EXPECT_EQ(error({.ranks = 8, .data = std::nullopt, .context = 8}, 1000),
            "data.sequence_length = 1000 is not a multiple of 16 (2 * parallel.context); 992 or "
            "1008 are");
  EXPECT_EQ(
      error(
          {.ranks = 8, .data = std::nullopt, .context = 8}, 5, {.balance = ContextBalance::kNone}),
      "data.sequence_length = 5 is not a multiple of 8 (parallel.context); 8 is");
  EXPECT_EQ(error({.ranks = 8, .data = std::nullopt, .tensor = 4, .context = 2}, 12),
            "data.sequence_length = 12 is not a multiple of 8 (2 * parallel.context, "
            "parallel.tensor * parallel.context); 8 or 16 are");
  EXPECT_EQ(
      error({.ranks = 8, .data = std::nullopt, .context = 8}, 32, {.kind = ContextKind::kUlysses}),
      "parallel.context: found 8, expected with context.kind = \"ulysses\" a divisor of the 4 "
      "heads that parallel.tensor = 1 leaves of model.kv_heads = 4: context.kind = "
      "\"ring\" and \"gather\" take any number");
  EXPECT_EQ(
      error({.ranks = 2, .data = std::nullopt}, 32, {.kind = ContextKind::kUlysses}),
      "context.kind: has no effect with parallel.context = 1: set that to 2 or more, or leave "
      "[context] out");
  EXPECT_EQ(error({.ranks = 2, .data = std::nullopt}, 32, {.inner = "node"}),
            "context.inner: has no effect with parallel.context = 1: set that to 2 or more, or "
            "leave [context] out");
  EXPECT_EQ(error({.ranks = 2, .data = std::nullopt, .context = 2}, 32, {.inner = "node"}),
            "context.inner: found \"node\", expected none with context.kind = \"gather\": "
            "\"ring\" has an inner ring");
}

TEST(Validate, ContextRanksKnowNoPlacesInSequences) {
  RunConfig config = valid_config();
  config.parallel = {.ranks = 4, .data = std::nullopt, .context = 2, .pipeline = 2};
  config.data.sequence_length = 32;
  config.pipeline.slices = 2;
  EXPECT_EQ(config_error([&] { validate(config); }),
            "pipeline.slices: found 2, expected 1 with parallel.context = 2, whose ranks have "
            "tokens from all over a sequence");
  config.pipeline.slices = 1;
  config.passes.attention = AttentionOps::kUnfused;
  config.context.kind = ContextKind::kUlysses;
  EXPECT_EQ(config_error([&] { validate(config); }),
            "context.kind: found \"ulysses\", expected \"gather\" where attention is several ops "
            "(passes.attention, model.alibi)");
  config.context.kind = ContextKind::kRing;
  EXPECT_EQ(config_error([&] { validate(config); }),
            "context.kind: found \"ring\", expected \"gather\" where attention is several ops "
            "(passes.attention, model.alibi)");
  config.context.kind = ContextKind::kGather;
  config.train.dropout = 0.1;
  EXPECT_EQ(config_error([&] { validate(config); }),
            "train.dropout: found 0.1, expected 0 with parallel.context = 2: what is dropped "
            "depends on a token's place in its sequence, which a context rank does not know");
}

TEST(Validate, PipelineDegrees) {
  const auto error = [](std::int64_t ranks, std::int64_t tensor, std::int64_t pipeline) {
    RunConfig config = valid_config();
    config.parallel = {
        .ranks = ranks, .data = std::nullopt, .tensor = tensor, .pipeline = pipeline};
    return config_error([&] { validate_degrees(config); });
  };
  EXPECT_EQ(error(8, 1, 3), "parallel.pipeline = 3 does not divide 8 ranks; 2, 4 or 8 do");
  EXPECT_EQ(error(12, 2, 4),
            "parallel.pipeline = 4 does not divide the 6 that parallel.tensor = 2 leaves of 12 "
            "ranks; 2, 3 or 6 do");
  EXPECT_EQ(error(1, 1, 2), "parallel.pipeline = 2 does not divide 1 rank; 1 does");
  EXPECT_EQ(error(7, 1, 2), "parallel.pipeline = 2 does not divide 7 ranks; 7 does");
  RunConfig config = valid_config();
  config.parallel = {.ranks = 12, .data = 3, .tensor = 2, .pipeline = 3};
  EXPECT_EQ(
      config_error([&] { validate_degrees(config); }),
      "parallel.data: found 3, which with parallel.tensor = 2 and parallel.pipeline = 3 makes "
      "18 ranks, expected parallel.ranks = 12; leave parallel.data out to take the ranks "
      "that are left");
}

TEST(Validate, PipelineKeysNeedOne) {
  constexpr std::string_view kUnused =
      ": has no effect with parallel.pipeline = 1: set that to 2 or more, or leave [pipeline] out";
  EXPECT_EQ(invalid(valid_config(), [](RunConfig& c) { c.pipeline.schedule = "gpipe"; }),
            format("pipeline.schedule{}", kUnused));
  EXPECT_EQ(invalid(valid_config(), [](RunConfig& c) { c.pipeline.chunks = 2; }),
            format("pipeline.chunks{}", kUnused));
  EXPECT_EQ(invalid(valid_config(), [](RunConfig& c) { c.pipeline.layers = {{1, 1}}; }),
            format("pipeline.layers{}", kUnused));
  EXPECT_EQ(invalid(valid_config(), [](RunConfig& c) { c.pipeline.slices = 2; }),
            format("pipeline.slices{}", kUnused));
}

TEST(Validate, SlicesHaveTokens) {
  EXPECT_EQ(invalid(valid_config(),
                    [](RunConfig& c) {
                      c.parallel.pipeline = 2;
                      c.data.sequence_length = 16;
                      c.pipeline.slices = 17;
                    }),
            "pipeline.slices: found 17, expected at most the tokens of a sequence: "
            "data.sequence_length = 16");
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
  for (const std::string folder : {"configs/runs", "configs/recipes"}) {
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(TESSERA_SOURCE_DIR) / folder)) {
      for (const std::string steps : {"1", "2", "10", "60", "1000"}) {
        EXPECT_NO_THROW(load_run_config(entry.path(), std::vector{"--train.steps=" + steps}))
            << entry.path();
      }
      ++recipes;
    }
  }
  EXPECT_GE(recipes, 11);
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

}  // namespace
}  // namespace tessera
