// What a run of `tessera train` leaves behind, and that it is the same every time.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/config/config.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

class RunTest : public TrainingTest {};

// The fields of docs/formats.md, in the order of the file.
TEST_F(RunTest, MetricsHaveOneObjectAStep) {
  ASSERT_EQ(train("a").code, 0);
  const std::vector<std::string> lines = metrics("a");
  ASSERT_THAT(lines, SizeIs(12));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto step = nlohmann::ordered_json::parse(lines[i]);
    const auto n = static_cast<std::int64_t>(i) + 1;
    std::vector<std::string> keys;
    for (const auto& [key, value] : step.items()) {
      keys.push_back(key);
      EXPECT_TRUE(value.is_number()) << key << " of " << lines[i];
    }
    EXPECT_THAT(keys,
                ElementsAre("step",
                            "loss",
                            "grad_norm",
                            "lr",
                            "tokens",
                            "step_seconds",
                            "tokens_per_second",
                            "memory_bytes"));
    EXPECT_EQ(step["step"], n);
    EXPECT_EQ(step["tokens"], n * kTokensPerStep);
    EXPECT_GT(step["memory_bytes"], 0);
    EXPECT_NEAR(step["step_seconds"].get<double>() * step["tokens_per_second"].get<double>(),
                double{kTokensPerStep},
                1e-6);
    // Warmup over 2 steps, decay over the last 6, to 0 at step 13.
    const double share = std::min({1.0, static_cast<double>(n) / 2.0, (13.0 - double(n)) / 6.0});
    EXPECT_NEAR(step["lr"], 3e-3 * share, 1e-15);
  }
}

TEST_F(RunTest, LearnsTheText) {
  const Outcome outcome = train("a", {"--train.steps=150"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<std::string> lines = metrics("a");
  // A fresh model knows nothing: ln 300 = 5.70, and half a nat for its random head.
  EXPECT_NEAR(json::parse(lines.front())["loss"], 6.2, 0.3);
  EXPECT_LT(json::parse(lines.back())["loss"], 2.5);
}

TEST_F(RunTest, LeavesConfigAndCheckpoint) {
  const Outcome outcome = train("a", {"--checkpoint.every=4", "--checkpoint.keep=2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string text = read_file(path("a") / "config.toml");
  const RunConfig config = parse_run_config(text, "config.toml");
  EXPECT_EQ(to_toml(config), text);
  EXPECT_EQ(config.run.dir, "a");
  EXPECT_EQ(config.model.dim, 32);
  EXPECT_EQ(config.model.tied, false);  // written out although the run file leaves it out
  EXPECT_EQ(checkpoint("a"), checkpoint("a", 12));
  EXPECT_TRUE(std::filesystem::exists(checkpoint("a", 8)));
  EXPECT_FALSE(std::filesystem::exists(checkpoint("a", 4))) << "keep = 2";
  const CheckpointMeta meta = CheckpointReader(checkpoint("a")).meta();
  EXPECT_EQ(meta.step, 12);
  EXPECT_EQ(meta.applied_steps, 12);
  EXPECT_EQ(meta.config, text);
}

TEST_F(RunTest, LastLineNamesMetricsAndCheckpoint) {
  const Outcome outcome = train("a");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const double loss = json::parse(metrics("a").back())["loss"];
  EXPECT_EQ(outcome.out,
            format("metrics: a/metrics.jsonl, checkpoints: a/checkpoints (step 12, loss {:.4f})\n",
                   loss));
  EXPECT_THAT(outcome.err, HasSubstr("\nstep 1/12  loss "));
  EXPECT_THAT(outcome.err, HasSubstr("\nstep 12/12  loss "));
  EXPECT_THAT(outcome.err, testing::ContainsRegex("\nstep 12/12 [^\n]*FLOP/s  [0-9]+ % of peak  "));
  EXPECT_THAT(outcome.err, Not(HasSubstr("\x1b"))) << "plain lines where there is no terminal";
}

TEST_F(RunTest, SameRunTwice) {
  ASSERT_EQ(train("a").code, 0);
  ASSERT_EQ(train("b").code, 0);
  expect_same_training("a", "b");
  // Another seed is another run, so that equality above means something.
  ASSERT_EQ(train("c", {"--run.seed=7"}).code, 0);
  EXPECT_NE(numbers("c"), numbers("a"));
  EXPECT_THAT(differing_tensors(checkpoint("c"), checkpoint("a")), Not(IsEmpty()));
}

TEST_F(RunTest, FinishedRunChangesNothing) {
  ASSERT_EQ(train("a").code, 0);
  const std::vector<std::string> lines = metrics("a");
  const Outcome again = train("a");
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.err, HasSubstr("nothing to do: the run is at step 12 of 12"));
  EXPECT_EQ(again.out, "metrics: a/metrics.jsonl, checkpoints: a/checkpoints (step 12)\n");
  EXPECT_EQ(metrics("a"), lines);
}

TEST_F(RunTest, InvalidUtf8IsTextToo) {
  std::string bytes;
  for (int i = 0; i < 4096; ++i) {
    bytes += static_cast<char>(i * 37 % 256);
  }
  write_test_file(path("bytes.txt"), bytes);
  const Outcome outcome = train("a", {"--data.files=bytes.txt"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(metrics("a"), SizeIs(12));
}

TEST_F(RunTest, SamplesAtTheEnd) {
  const Outcome outcome = train("a", {"--sample.prompt=Line 1 of", "--sample.tokens=4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::StartsWith("metrics: a/metrics.jsonl"));
  // The same as `tessera generate` says.
  const Outcome generated = tessera({"generate", "a", "--prompt", "Line 1 of", "--tokens", "4"});
  EXPECT_EQ(generated.code, 0);
  EXPECT_THAT(generated.out, testing::StartsWith("Line 1 of"));
  EXPECT_EQ(outcome.out.substr(outcome.out.find('\n') + 1), generated.out);
}

}  // namespace
}  // namespace tessera
