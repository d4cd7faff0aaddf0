// Keys and values as text: in files and in overrides.

#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/config/config.h"
#include "tessera/config/test_config.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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
    EXPECT_THAT(
        parse_error(format("{}{}{}", line, newer, rest)),
        StartsWith(format(
            "{} (run.toml was written by Tessera {}, which is newer than this ", unknown, newer)));
  }
  for (const char* const not_newer : {"0.0.1", "", "x"}) {
    EXPECT_EQ(parse_error(format("{}{}{}", line, not_newer, rest)), unknown);
  }
  EXPECT_THAT(to_toml(valid_config()), StartsWith(line));
}

// Keys that would change nothing yet are refused, not ignored.
TEST(ParseConfig, RefusesWhatDoesNotExistYet) {
  EXPECT_EQ(parse_error("[parallel]\nexpert = 2\n"),
            "run.toml:2:1: unknown key \"parallel.expert\"");
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

TEST(ParseConfig, ADegreeIsANumberOrALevel) {
  EXPECT_EQ(parse_run_config("[state]\nparam = 4\n", "run.toml").state.param, "4");
  EXPECT_EQ(with_override("--state.param=node").state.param, "node");
  EXPECT_EQ(with_override("--state.param=8").state.param, "8");
  EXPECT_EQ(parse_error("[state]\nparam = 0\n"),
            "run.toml:2:9: state.param: found integer 0, expected integer, at least 1, or the name "
            "of a level");
}

TEST(ParseConfig, BytesMayHaveAUnit) {
  const auto limit = [](const std::string& text) {
    RunConfig config;
    apply_override(config, "--memory.limit_bytes=" + text);
    return config.memory.limit_bytes;
  };
  EXPECT_EQ(limit("6000000000"), 6000000000);
  EXPECT_EQ(limit("6 GB"), 6000000000);
  EXPECT_EQ(limit("1.5GiB"), 3LL << 29);
  EXPECT_EQ(limit("0"), 0);
  EXPECT_EQ(parse_run_config("[memory]\nlimit_bytes = \"2 KiB\"", "run.toml").memory.limit_bytes,
            2048);
  for (const char* const text : {"6 GX", "-1", "-1 GB", "1e300 GB", "nan B", "six"}) {
    EXPECT_THAT(override_error(std::string("--memory.limit_bytes=") + text),
                testing::HasSubstr("expected bytes, such as 6000000000 or \"6 GB\", at least 0"))
        << text;
  }
}

TEST(ParseConfig, LayersAreAllOrSoManyOrARange) {
  const auto layers = [](const std::string& text) {
    RunConfig config;
    apply_override(config, "--memory.recompute_layers=" + text);
    EXPECT_EQ(to_string(config.memory.recompute_layers), text);
    return config.memory.recompute_layers;
  };
  EXPECT_TRUE(layers("all").is_all());
  EXPECT_EQ(layers("8"), RecomputedLayers{.of_stage = 8});
  EXPECT_EQ(layers("4-11"), (RecomputedLayers{.first = 4, .end = 12}));
  EXPECT_EQ(layers("0-0"), (RecomputedLayers{.first = 0, .end = 1}));
  for (const char* const text : {"0", "-1", "3-1", "1-", "-", "2-3-4", "some", "99999999999"}) {
    EXPECT_THAT(override_error(std::string("--memory.recompute_layers=") + text),
                testing::HasSubstr("expected \"all\", a number of layers"))
        << text;
  }
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

// As though nobody had said it; keys that always have a value take none.
TEST(Override, NothingLeavesAKeyOut) {
  RunConfig config;
  for (const char* const text : {"--pipeline.chunks=2",
                                 "--pipeline.layers=[1, 2]",
                                 "--state.param=4",
                                 "--comm.reduction=ordered"}) {
    apply_override(config, text);
  }
  for (const char* const text :
       {"--pipeline.chunks=", "--pipeline.layers=", "--state.param=", "--comm.reduction="}) {
    apply_override(config, text);
  }
  EXPECT_EQ(config, RunConfig());
  EXPECT_TRUE(config.origins.places.empty());
  EXPECT_EQ(override_error("--train.steps="),
            "--train.steps=: train.steps: found , which is not a TOML value, expected integer from "
            "1 to 2147483647");
}

// What is written of a key is read back as the same.
TEST(Override, OfWhatAConfigHas) {
  RunConfig config;
  config.pipeline.layers = std::vector<std::int64_t>{3, 5};
  config.state.wire_param = "bf16 int8";
  config.memory.recompute = Recompute::kAttention;
  EXPECT_EQ(override_text(config, "pipeline.layers"), "--pipeline.layers=[3, 5]");
  EXPECT_EQ(override_text(config, "pipeline.chunks"), "--pipeline.chunks=");
  RunConfig other;
  other.pipeline.chunks = 7;
  for (const char* const key :
       {"pipeline.layers", "pipeline.chunks", "state.wire_param", "memory.recompute"}) {
    apply_override(other, override_text(config, key));
  }
  EXPECT_EQ(other, config);
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

}  // namespace
}  // namespace tessera
