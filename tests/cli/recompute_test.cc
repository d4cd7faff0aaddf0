// Layers that are computed again, as the run file says or as memory allows: the bits of a run that
// keeps all, within its limit.

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class RecomputeTest : public TrainingTest {
 protected:
  json explained(std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), {"explain", "run.toml", "--json"});
    const Outcome outcome = tessera(overrides);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out).at("memory");
  }

  std::int64_t needed(std::vector<std::string> overrides, const std::string& recompute) {
    overrides.push_back("--memory.recompute=" + recompute);
    return explained(overrides).at("needed").get<std::int64_t>();
  }

  // A limit between what the least and all that is kept need.
  std::string some_limit(const std::vector<std::string>& overrides, double part) {
    const std::int64_t least = needed(overrides, "full");
    const std::int64_t all = needed(overrides, "none");
    EXPECT_LT(least, all);
    return format("--memory.limit_bytes={}",
                  least + static_cast<std::int64_t>(part * static_cast<double>(all - least)));
  }

  std::string refused(const std::vector<std::string>& overrides) {
    const Outcome outcome = train("refused", overrides);
    EXPECT_EQ(outcome.code, 2);
    return outcome.err;
  }
};

TEST_F(RecomputeTest, KeepsWhatThereIsRoomFor) {
  const std::vector<std::string> usual = {"--model.layers=4", "--train.microbatch=2"};
  ASSERT_EQ(train("all", usual).code, 0);
  for (const double part : {0.02, 0.3, 0.7}) {
    std::vector<std::string> overrides = usual;
    overrides.push_back(some_limit(usual, part));
    const json memory = explained(overrides);
    EXPECT_TRUE(memory.at("fits").get<bool>());
    EXPECT_THAT(memory.at("recompute").at("rules"), Not(IsEmpty()));
    EXPECT_GT(memory.at("recompute").at("auto").at("repeated").get<double>(), 0.0);
    EXPECT_EQ(memory.at("recompute").at("auto").at("all_bytes"), needed(usual, "none"));
    const std::string run = format("part-{}", part);
    const Outcome outcome = train(run, overrides);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("memory.recompute = \"auto\": layer"));
    EXPECT_EQ(json::parse(metrics(run).back()).at("memory_bytes"), memory.at("needed"));
    expect_same_training(run, "all");
  }
  // What fits is left alone.
  EXPECT_THAT(explained(usual).at("recompute").at("rules"), IsEmpty());
  EXPECT_TRUE(explained(usual).at("recompute").at("auto").is_null());
}

// The choice is in config.toml; a start with the same keys goes on with it.
TEST_F(RecomputeTest, KeepsItsChoice) {
  const std::vector<std::string> usual = {"--model.layers=4", "--train.microbatch=2"};
  std::vector<std::string> overrides = usual;
  overrides.push_back(some_limit(usual, 0.3));
  const auto started = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = train("run", all);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  const std::string said = "a step's work, as an earlier start chose; to keep all needs";
  EXPECT_THAT(started({"--train.steps=3"}), Not(HasSubstr(said)));
  EXPECT_THAT(read_file(path("run") / "config.toml"), HasSubstr("\nchosen = \""));
  EXPECT_THAT(started({"--train.steps=4"}), HasSubstr(said));
  // Of other steps, though it would fit; then damaged, alone and with all of the file.
  const std::string chosen = "memory.recompute = \"auto\": layer";
  const auto chooses = [&] { return AllOf(HasSubstr(chosen), Not(HasSubstr(said))); };
  EXPECT_THAT(started({"--train.steps=5", "--data.sequence_length=30"}), chooses());
  const std::string file = read_file(path("run") / "config.toml");
  const std::size_t at = file.find("\nchosen = \"") + 11;
  write_test_file(path("run") / "config.toml", std::string(file).replace(at, 1, "x"));
  const std::string not_taken = ": what an earlier start chose is not taken\n";
  EXPECT_THAT(started({"--train.steps=6"}), AllOf(chooses(), HasSubstr(not_taken)));
  write_test_file(path("run") / "config.toml", "[memory\n");
  EXPECT_THAT(started({"--train.steps=7"}), AllOf(chooses(), HasSubstr(not_taken)));
  EXPECT_THAT(started({"--train.steps=8"}), HasSubstr(said));
  EXPECT_THAT(started({"--train.steps=9", "--memory.limit_bytes=0"}), Not(HasSubstr(chosen)));
  EXPECT_EQ(train("none", {"--memory.recompute=none", "--memory.chosen=4"}).code, 0);
  EXPECT_THAT(refused({"--memory.chosen=4"}),
              AllOf(HasSubstr("found \"4\", expected BYTES of BYTES [for KINDS]: FIRST-LAST OP"),
                    HasSubstr("(--memory.chosen=4: memory.chosen)")));
}

// Where the least is too much for ranks that read sequences of their own, but not for ranks that
// share them.
TEST_F(RecomputeTest, AdvisesToShareSequences) {
  std::vector<std::string> usual = {
      "--parallel.ranks=2", "--train.microbatch=1", "--data.sequence_length=256"};
  std::vector<std::string> sharing = usual;
  sharing.emplace_back("--parallel.context=2");
  const std::int64_t whole = needed(usual, "full");
  const std::int64_t shared = needed(sharing, "full");
  ASSERT_LT(shared, whole);
  const std::string limit = format("--memory.limit_bytes={}", (whole + shared) / 2);
  usual.push_back(limit);
  const Outcome outcome = train("whole", usual);
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err,
              testing::ContainsRegex("\n  parallel\\.context = 2 needs [^\n]*, which fits\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("data.sequence_length = ")));
  std::vector<std::string> with_data = usual;
  with_data.emplace_back("--parallel.data=2");
  EXPECT_THAT(train("whole", with_data).err,
              HasSubstr("\n  parallel.context = 2 and parallel.data = 1 needs "));
  sharing.push_back(limit);
  EXPECT_EQ(train("shared", sharing).code, 0);
}

// An op that is named alone, of those that are named by their kind.
TEST_F(RecomputeTest, KeepsWhatIsNamedAlone) {
  const std::vector<std::string> again = {"--model.layers=3", "--memory.recompute_ops=matmul"};
  std::vector<std::string> but_one = again;
  but_one.emplace_back("--memory.keep=matmul.0");
  EXPECT_GT(needed(but_one, "selective"), needed(again, "selective"));
  but_one.back() = "--memory.keep=matmul";
  but_one.emplace_back("--memory.recompute=selective");
  EXPECT_THAT(refused(but_one),
              HasSubstr("memory.keep and memory.recompute_ops both name \"matmul\": expected one"));
}

// "full" would be refused beside these keys, or be of these layers alone.
TEST_F(RecomputeTest, AdvisesNoKindThatOtherKeysRuleOut) {
  for (const char* const key : {"--memory.keep=rms_norm.0", "--memory.recompute_layers=1"}) {
    const Outcome outcome =
        train("refused", {"--memory.recompute=selective", key, "--memory.limit_bytes=100000"});
    EXPECT_EQ(outcome.code, 4);
    EXPECT_THAT(outcome.err, Not(HasSubstr("memory.recompute = ")));
  }
}

TEST_F(RecomputeTest, AdvisesChangesTogether) {
  std::vector<std::string> keys = {"--checkpoint.every=2", "--train.microbatch=2"};
  std::vector<std::string> changed = keys;
  changed.insert(changed.end(), {"--checkpoint.async=false", "--train.microbatch=1"});
  const std::int64_t bytes = needed(changed, "none");
  keys.insert(keys.end(), {"--memory.recompute=none", format("--memory.limit_bytes={}", bytes)});
  const Outcome outcome = train("refused", keys);
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err,
              HasSubstr(format("\n  checkpoint.async = false and train.microbatch = 1 needs {}, "
                               "which fits\n",
                               format_bytes(bytes))));
}

TEST_F(RecomputeTest, ChangesNoBitInPipelines) {
  const std::vector<std::string> usual = {"--model.layers=4",
                                          "--train.microbatch=1",
                                          "--parallel.ranks=2",
                                          "--parallel.pipeline=2",
                                          "--pipeline.schedule=zb-h1"};
  ASSERT_EQ(train("all", usual).code, 0);
  std::vector<std::string> overrides = usual;
  overrides.push_back(some_limit(usual, 0.4));
  ASSERT_EQ(train("some", overrides).code, 0);
  expect_same_training("some", "all");
}

TEST_F(RecomputeTest, TakesTheOpsAndLayersThatAreNamed) {
  ASSERT_EQ(train("all").code, 0);
  const std::vector<std::vector<std::string>> ways = {
      {"--memory.recompute=selective"},
      {"--memory.recompute=selective", "--memory.keep=rms_norm.0"},
      {"--memory.recompute=selective", "--memory.recompute_ops=[\"attention\", \"matmul.1\"]"},
      {"--memory.recompute=full", "--memory.recompute_layers=1-1"},
      {"--memory.recompute=full", "--memory.recompute_layers=1"}};
  const auto bytes_of = [&](const std::string& run) {
    return json::parse(metrics(run).back()).at("memory_bytes").get<std::int64_t>();
  };
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const std::string run = format("way-{}", i);
    const Outcome outcome = train(run, ways[i]);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    // Of the last layer nothing is gained: its backward comes first.
    if (ways[i].back() == "--memory.recompute_layers=1-1") {
      EXPECT_EQ(bytes_of(run), bytes_of("all"));
    } else {
      EXPECT_LT(bytes_of(run), bytes_of("all")) << i;
    }
    expect_same_training(run, "all");
  }
}

TEST_F(RecomputeTest, RefusesWhatHasNoEffect) {
  EXPECT_THAT(refused({"--memory.keep=rms_norm"}),
              HasSubstr("--memory.keep=rms_norm: memory.keep: has no effect with memory.recompute "
                        "= \"auto\": set that to \"selective\", or leave it out"));
  EXPECT_THAT(refused({"--memory.recompute=full", "--memory.recompute_ops=add"}),
              HasSubstr("memory.recompute_ops: has no effect with memory.recompute = \"full\""));
  EXPECT_THAT(refused({"--memory.recompute_layers=2"}),
              HasSubstr("memory.recompute_layers: has no effect with memory.recompute = \"auto\": "
                        "set that to \"full\", or leave it out"));
  EXPECT_THAT(refused({"--memory.recompute=selective", "--memory.keep=rms_norms"}),
              HasSubstr("memory.keep names \"rms_norms\", an op that no layer has in its forward: "
                        "expected one of "));
  EXPECT_THAT(refused({"--memory.recompute=full", "--memory.recompute_layers=0-9"}),
              HasSubstr("memory.recompute_layers: found \"0-9\", expected layers of the model, "
                        "whose last is 1"));
  EXPECT_THAT(
      refused({"--memory.recompute_layers=3-1"}),
      HasSubstr("found string \"3-1\", expected \"all\", a number of layers, at least 1, or two "
                "numbers of layers, as \"4-11\""));
  EXPECT_THAT(
      refused({"--memory.limit_bytes=6 XB"}),
      HasSubstr("found string \"6 XB\", expected bytes, such as 6000000000 or \"6 GB\", at least "
                "0"));
}

}  // namespace
}  // namespace tessera
