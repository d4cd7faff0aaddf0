// Low-rank adapters from outside: a run on exported weights trains nothing but them, goes on under
// another layout, samples and evaluates as it is, and goes out merged; what does not fit is told.

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

const std::vector<std::string> kWeights = {
    "--model.weights=base", "--schedule.warmup=0", "--schedule.decay_ratio=0"};

class LoraTest : public TrainingTest {
 protected:
  // A trained base, exported.
  LoraTest() {
    EXPECT_EQ(train("a", {"--train.steps=4"}).code, 0);
    EXPECT_EQ(tessera({"checkpoint", "export", "a", "base"}).code, 0);
  }

  Outcome train_on_base(const std::string& run, std::vector<std::string> overrides = {}) const {
    overrides.insert(overrides.begin(), kWeights.begin(), kWeights.end());
    return train(run, std::move(overrides));
  }

  Outcome train_adapters(const std::string& run, std::vector<std::string> overrides = {}) const {
    overrides.insert(overrides.begin(), {"--lora.rank=2", "--lora.alpha=4"});
    return train_on_base(run, std::move(overrides));
  }

  double number(const std::string& run, std::size_t step, const char* key) const {
    return nlohmann::json::parse(metrics(run).at(step)).at(key);
  }

  void expect_refused(const std::vector<std::string>& overrides, const std::string& message) const {
    const Outcome outcome = train_adapters("refused", overrides);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
};

TEST_F(LoraTest, TrainsAdaptersAlone) {
  const Outcome outcome = train_adapters("b", {"--train.steps=4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("of them trained"));
  EXPECT_THAT(outcome.err, HasSubstr("starting from the weights of base"));
  EXPECT_THAT(read_file(path("b/config.toml")),
              AllOf(HasSubstr("alpha = 4.0\n"), HasSubstr("targets = [\"wq\", \"wk\", \"wv\"")));
  // B starts at zero: the first loss is that of the base, to the bit.
  ASSERT_EQ(train_on_base("c", {"--train.steps=1"}).code, 0);
  EXPECT_EQ(number("b", 0, "loss"), number("c", 0, "loss"));
  EXPECT_LT(number("b", 0, "grad_norm"), number("c", 0, "grad_norm"));
  // What differs between two of its checkpoints is adapters.
  ASSERT_EQ(train_adapters("d", {"--train.steps=1"}).code, 0);
  EXPECT_THAT(differing_tensors(checkpoint("b"), checkpoint("d")), Each(HasSubstr(".lora_")));
  EXPECT_THAT(differing_tensors(checkpoint("b"), checkpoint("d")),
              testing::Not(testing::IsEmpty()));
}

TEST_F(LoraTest, GoesOnUnderAnotherLayoutAndGoesOutMerged) {
  ASSERT_EQ(train_adapters("whole",
                           {"--train.steps=6",
                            "--data.validation_files=[\"corpus.txt\"]",
                            "--validation.every=3",
                            "--validation.sequences=4"})
                .code,
            0);
  EXPECT_LT(number("whole", 5, "validation_loss"), number("whole", 2, "validation_loss"));
  const std::vector<std::string> fsdp = {"--parallel.ranks=2", "--state.preset=fsdp"};
  const std::vector<std::string> tensor = {"--parallel.tensor=2", "--train.steps=6"};
  std::vector<std::string> first = fsdp;
  first.emplace_back("--train.steps=3");
  ASSERT_EQ(train_adapters("b", first).code, 0);
  const Outcome resumed = train_adapters("b", tensor);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("after step 3\n"));
  EXPECT_NEAR(number("b", 5, "loss"), number("whole", 5, "loss"), 1e-4);

  ASSERT_EQ(tessera({"checkpoint", "verify", "b"}).code, 0);
  ASSERT_EQ(tessera({"checkpoint", "export", "b", "merged"}).code, 0);
  ASSERT_EQ(tessera({"checkpoint", "import", "merged", "-o", "imported"}).code, 0);
  const auto sampled = [&](const std::string& of) {
    return tessera({"generate", of, "--prompt=the", "--temperature=0", "--tokens=8", "--dtype=f32"})
        .out;
  };
  EXPECT_EQ(sampled("b"), sampled("imported"));
  const auto evaluated = [&](const std::string& of) {
    const Outcome outcome = tessera({"eval", of, "--data", "corpus.txt"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out.substr(outcome.out.find('\n'));
  };
  EXPECT_EQ(evaluated("b"), evaluated("imported"));
}

TEST_F(LoraTest, Explains) {
  const Outcome outcome =
      tessera({"explain", "run.toml", "--run.dir=e", kWeights[0], "--lora.rank=2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(" of them frozen\n"));
  EXPECT_THAT(outcome.out, HasSubstr("(6N, 4N of what is frozen,"));
  EXPECT_THAT(outcome.out, HasSubstr(", adapters of rank 2\n"));
  const std::string program =
      tessera({"explain", "run.toml", kWeights[0], "--lora.rank=2", "--program"}).out;
  EXPECT_THAT(program, testing::Not(HasSubstr("\"moment1.norm.weight\"")));
  EXPECT_THAT(program, HasSubstr("\"moment1.layers.0.attention.wq.weight.lora_a\""));
}

TEST_F(LoraTest, RefusesWhatDoesNotFit) {
  expect_refused({"--lora.targets=[\"wq\", \"query\"]"},
                 "lora.targets: found \"query\", expected one of wq, wk, wv, wo, w1, w3, w2, "
                 "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj");
  expect_refused({"--lora.rank=1000"}, "lora.rank: found 1000, expected at most ");
  expect_refused({"--lora.alpha=-1"}, "lora.alpha: found integer -1, expected number above 0");
  expect_refused({"--lora.rank=0"}, "lora.alpha: found a value, but lora.rank = 0");
  expect_refused({"--model.weights="}, "lora.rank: found 2, and no weights to adapt");
  ASSERT_EQ(train_adapters("b", {"--train.steps=2"}).code, 0);
  const auto expect_other = [&](const std::string& run,
                                const std::vector<std::string>& overrides,
                                const std::vector<std::string>& parts) {
    const Outcome outcome = train_adapters(run, overrides);
    EXPECT_EQ(outcome.code, 2);
    for (const std::string& part : parts) {
      EXPECT_THAT(outcome.err, HasSubstr(part));
    }
  };
  expect_other("b", {"--lora.rank=3"}, {"was made with lora.rank = 2,", "found lora.rank = 3,"});
  expect_other(
      "b", {"--lora.alpha=2"}, {"lora.alpha = 4.0,", "found lora.rank = 2, lora.alpha = 2.0"});
  expect_other("b",
               {"--lora.targets=[\"q_proj\"]"},
               {"\"wk\",", "found lora.rank = 2, lora.alpha = 4.0, lora.targets = [\"wq\"]"});
  expect_other(
      "a",
      {},
      {"was made with no [lora], found lora.rank = 2,", "name it in model.weights of a new run"});
  const Outcome without = train_on_base("b");
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err, HasSubstr("lora.targets = [\"wq\",\"wk\",\"wv\""));
  EXPECT_THAT(without.err, HasSubstr("found no [lora]"));
}

}  // namespace
}  // namespace tessera
