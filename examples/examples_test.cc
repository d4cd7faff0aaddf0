// The examples do what they are for: each trains its model on a text.

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/format.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class ExampleTest : public TrainingTest, public testing::WithParamInterface<const char*> {
 protected:
  // The models are the examples' own, which no text of a plan describes.
  void TearDown() override {}

  Outcome run(const std::vector<std::string>& arguments) const {
    std::vector<std::string> argv = {built_program(format("examples/{}", GetParam()))};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return Process(argv, path("")).finish();
  }

  Outcome train_steps(int steps) const {
    return run({"corpus.txt",
                "run",
                "--run.threads=1",
                "--schedule.warmup=2",
                format("--train.steps={}", steps)});
  }
};

TEST_P(ExampleTest, Learns) {
  const Outcome outcome = train_steps(100);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<std::string> lines = metrics("run");
  ASSERT_THAT(lines, SizeIs(100));
  const double first = nlohmann::json::parse(lines.front())["loss"];
  const double last = nlohmann::json::parse(lines.back())["loss"];
  EXPECT_LT(last, 0.5 * first);
}

TEST_P(ExampleTest, GoesOnWhereItStopped) {
  ASSERT_EQ(train_steps(10).code, 0);
  const Outcome outcome = train_steps(12);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("resuming from run/checkpoints/step-00000010 after step 10"));
  EXPECT_THAT(metrics("run"), SizeIs(12));
}

// Nobody named a warmup, which gets no longer than the run.
TEST_P(ExampleTest, TakesFewSteps) {
  EXPECT_EQ(run({"corpus.txt", "run", "--run.threads=1", "--train.steps=5"}).code, 0);
}

// A run of it is not broken, but another program's.
TEST_P(ExampleTest, TheProgramItselfSaysWhoseModelItIs) {
  ASSERT_EQ(train_steps(10).code, 0);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"generate", "run", "--prompt=x"},
        std::vector<std::string>{"eval", "run", "--data=corpus.txt"},
        std::vector<std::string>{"checkpoint", "export", "run", "out"},
        std::vector<std::string>{"train", "run/config.toml"},
        std::vector<std::string>{"explain", "run/config.toml"},
        std::vector<std::string>{"train", "run/config.toml", "--model.flavor=debug"}}) {
    const Outcome outcome = tessera(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments.front();
    EXPECT_THAT(outcome.err,
                HasSubstr("run/checkpoints/step-00000010 is of a model of its own, family "))
        << arguments.front();
  }
  EXPECT_EQ(tessera({"checkpoint", "verify", "run"}).code, 0);
}

TEST_P(ExampleTest, SaysWhatIsWrong) {
  const Outcome usage = run({"corpus.txt"});
  EXPECT_EQ(usage.code, 2);
  EXPECT_THAT(usage.err, HasSubstr("usage: "));
  const Outcome missing = run({"none.txt", "run"});
  EXPECT_EQ(missing.code, 3);
  EXPECT_THAT(missing.err, HasSubstr("error: cannot open none.txt: No such file or directory"));
}

INSTANTIATE_TEST_SUITE_P(Examples,
                         ExampleTest,
                         testing::Values("custom_model", "custom_op"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace tessera
