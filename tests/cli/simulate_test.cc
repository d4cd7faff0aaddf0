// tessera simulate: how long a step takes on a cluster, in words and as JSON, and what is refused.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class SimulateTest : public TrainingTest {
 protected:
  static std::string cluster(const std::string& name) {
    return "--cluster=" +
           (std::filesystem::path(TESSERA_SOURCE_DIR) / "configs" / "clusters" / (name + ".toml"))
               .string();
  }

  // Of Llama debug on H100s, where no more is said.
  std::vector<std::string> with_run(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"simulate",
                                          "--model.flavor=debug",
                                          "--train.dtype=bf16",
                                          "--train.global_batch=16",
                                          "--train.microbatch=1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  Outcome simulate(const std::vector<std::string>& more) const { return tessera(with_run(more)); }

  json simulated(std::vector<std::string> more) const {
    more.emplace_back("--json");
    const Outcome outcome = simulate(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  }

  std::string refused(const std::vector<std::string>& more) const {
    const Outcome outcome = simulate(more);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  }
};

double sum_of_causes(const json& of_class) {
  double sum = 0.0;
  for (const json& cause : of_class.at("causes")) {
    sum += cause.at("seconds").get<double>();
  }
  return sum;
}

TEST_F(SimulateTest, SaysWhereAStepGoes) {
  const json step = simulated({"--parallel.ranks=16", cluster("h100-dgx")});
  EXPECT_EQ(step.at("ranks"), 16);
  EXPECT_EQ(step.at("is_estimate"), false);
  EXPECT_EQ(step.at("model"), "llama3 debug");
  EXPECT_LE(step.at("bound_seconds"), step.at("step_seconds"));
  ASSERT_EQ(step.at("classes").size(), 1U);
  EXPECT_EQ(step.at("classes")[0].at("ranks"), 16);
  EXPECT_NEAR(sum_of_causes(step.at("classes")[0]), step.at("step_seconds").get<double>(), 1e-9);
  // 16 sequences of 512 tokens.
  EXPECT_NEAR(step.at("tokens_per_second").get<double>() * step.at("step_seconds").get<double>(),
              16.0 * 512,
              1e-3);
  for (const json& doubled : step.at("doubled")) {
    EXPECT_LE(doubled.at("step_seconds"), step.at("step_seconds")) << doubled;
  }
  EXPECT_THAT(simulate({"--parallel.ranks=16", cluster("b200")}).out,
              HasSubstr("constants: estimates"));
}

TEST_F(SimulateTest, SaysWhereBytesTakeNoTime) {
  write_file_atomic(path("two.toml"), R"(name = "two"
[device]
name = "gpu"
memory = "80 GB"
memory_bandwidth = "1 TB/s"
peak = { f32 = "10 TFLOP/s", bf16 = "100 TFLOP/s" }
[[levels]]
name = "pair"
size = 2
bandwidth = 0
latency = "1 us"
)");
  EXPECT_THAT(simulate({"--parallel.ranks=2", "--cluster=two.toml"}).out,
              HasSubstr("; level pair has no bandwidth: bytes take no time there\n"));
}

TEST_F(SimulateTest, OfAPipelineHasAKindOfRanksForEachStage) {
  const json step = simulated({"--parallel.ranks=8", "--parallel.pipeline=2", cluster("h100-dgx")});
  ASSERT_EQ(step.at("classes").size(), 2U);
  for (const json& each : step.at("classes")) {
    EXPECT_EQ(each.at("ranks"), 4);
    EXPECT_NEAR(sum_of_causes(each), step.at("step_seconds").get<double>(), 1e-9);
  }
  // The second stage waits for the first one.
  std::vector<std::string> causes;
  for (const json& cause : step.at("classes")[1].at("causes")) {
    causes.push_back(cause.at("cause"));
  }
  EXPECT_THAT(causes, testing::Contains("pipeline fill"));
}

TEST_F(SimulateTest, ASlowRankSlowsAll) {
  const json even = simulated({"--parallel.ranks=8", cluster("h100-dgx")});
  const json uneven = simulated({"--parallel.ranks=8", "--slow=3:4", cluster("h100-dgx")});
  EXPECT_EQ(uneven.at("classes").size(), 2U);
  EXPECT_GT(uneven.at("step_seconds"), even.at("step_seconds"));
  // It is slow in what is simulated with more of something, too.
  for (const json& doubled : uneven.at("doubled")) {
    EXPECT_GT(doubled.at("step_seconds"), even.at("step_seconds")) << doubled;
  }
}

// Each draw has its own slowest rank.
TEST_F(SimulateTest, SaysHowStepsOfDrawnSpeedsLie) {
  const std::filesystem::path h100 =
      std::filesystem::path(TESSERA_SOURCE_DIR) / "configs" / "clusters" / "h100-dgx.toml";
  write_test_file(path("uneven.toml"), read_file(h100) + "\n[noise]\nspread = 0.05\n");
  const std::string uneven = "--cluster=" + path("uneven.toml").string();
  const json step = simulated({"--parallel.ranks=8", uneven, "--samples=9"});
  const json& samples = step.at("samples");
  EXPECT_EQ(samples.at("count"), 9);
  EXPECT_LT(samples.at("median_seconds"), samples.at("longest_seconds"));
  EXPECT_LE(samples.at("median_seconds"), samples.at("p95_seconds"));
  EXPECT_NEAR(samples.at("median_seconds").get<double>() / step.at("step_seconds").get<double>(),
              1.0,
              0.05);
  EXPECT_THAT(simulate({"--parallel.ranks=8", uneven, "--samples=9"}).out,
              HasSubstr("9 steps with drawn speeds of the ranks, whose spread is 5 %"));
  EXPECT_THAT(refused({"--parallel.ranks=8", cluster("h100-dgx"), "--samples=9"}),
              HasSubstr("noise.spread: found 0, expected how far"));
  EXPECT_THAT(refused({uneven, "--samples=9", "--sweep=parallel.ranks=1,2"}),
              HasSubstr("--samples=9: expected no --sweep beside it"));
}

TEST_F(SimulateTest, WantsTheFileOfAProgram) {
  const Outcome outcome =
      tessera({"simulate", "--program=no.txt", "--parallel.ranks=2", cluster("h100-dgx")});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--program=no.txt does not exist, expected what"));
}

TEST_F(SimulateTest, SweepsAKey) {
  const Outcome outcome = simulate({"--sweep=parallel.ranks=4..32", cluster("h100-dgx")});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("parallel.ranks "));
  EXPECT_THAT(outcome.out, HasSubstr("\n4 "));
  EXPECT_THAT(outcome.out, HasSubstr("\n16 "));
  EXPECT_THAT(outcome.out, HasSubstr("\n32                   --train.global_batch=16"));
  EXPECT_THAT(outcome.out, HasSubstr("\nconstants: bench/fit/published_fit of"));
  const json sweep = simulated({"--sweep=train.microbatch=1,2", cluster("h100-dgx")});
  EXPECT_EQ(sweep.at("key"), "train.microbatch");
  EXPECT_EQ(sweep.at("rows")[0].at("efficiency"), 1.0);
  EXPECT_EQ(sweep.at("rows")[1].at("value"), "2");
}

TEST_F(SimulateTest, SaysWhatATrainingTakes) {
  const json step = simulated({"--tokens=1G", "--parallel.ranks=8", cluster("h100-dgx")});
  const json& training = step.at("training");
  EXPECT_DOUBLE_EQ(training.at("seconds").get<double>(),
                   1e9 / step.at("tokens_per_second").get<double>());
  EXPECT_DOUBLE_EQ(training.at("device_hours").get<double>(),
                   8 * training.at("seconds").get<double>() / 3600);
  EXPECT_TRUE(training.at("usd").is_null());
}

// A program needs no model, and takes as long as the run that it is of.
TEST_F(SimulateTest, OfAProgramIsThatOfItsRun) {
  const json step = simulated({"--parallel.ranks=8", cluster("h100-dgx")});
  std::vector<std::string> explain = with_run({"--parallel.ranks=8", "--program", "--target=h100"});
  explain[0] = "explain";
  explain.push_back("--cluster.file=" +
                    cluster("h100-dgx").substr(std::string("--cluster=").size()));
  const std::string program = tessera(explain).out;
  write_file_atomic(path("step.txt"), program);
  const std::vector<std::string> alone = {
      "simulate", "--program=step.txt", "--parallel.ranks=8", cluster("h100-dgx"), "--json"};
  const Outcome outcome = tessera(alone);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out).at("step_seconds"), step.at("step_seconds"));

  std::string broken = program;
  const std::size_t signal = broken.find(" signal ");
  broken.erase(signal, broken.find_first_of(" \n", signal + 8) - signal);
  write_file_atomic(path("step.txt"), broken);
  const Outcome refused = tessera(alone);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, StartsWith("error: no step of these programs: "));
  const Outcome elsewhere = tessera(
      {"simulate", "--program=step.txt", "--parallel.ranks=4", cluster("h100-dgx"), "--json"});
  EXPECT_EQ(elsewhere.code, 2) << elsewhere.err;
}

// Threads of a rank are cores of the host, of which there are two.
TEST_F(SimulateTest, OfAHostSharesItsCores) {
  write_file_atomic(path("host.toml"), R"(name = "host"
[device]
name = "core"
memory = "8 GB"
memory_bandwidth = "20 GB/s"
peak = { f32 = "50 GFLOP/s", bf16 = "50 GFLOP/s" }
[[levels]]
name = "local"
size = 4
bandwidth = "8 GB/s"
latency = "5 us"
[host]
cores = 2
memory_bandwidth = "40 GB/s"
)");
  const auto seconds = [&](const std::string& ranks, const std::string& threads) {
    return simulated({"--train.dtype=f32",
                      "--cluster=host.toml",
                      "--parallel.ranks=" + ranks,
                      "--run.threads=" + threads})
        .at("step_seconds")
        .get<double>();
  };
  const double one = seconds("1", "1");
  EXPECT_NEAR(seconds("1", "2") / one, 0.5, 0.01);
  EXPECT_NEAR(seconds("2", "1") / one, 0.5, 0.03);
  EXPECT_NEAR(seconds("4", "1") / one, 0.5, 0.05);
  EXPECT_NEAR(seconds("2", "2") / one, 0.5, 0.03);
}

TEST_F(SimulateTest, RefusesWhatIsWrong) {
  const std::string h100 = cluster("h100-dgx");
  EXPECT_THAT(refused({}), StartsWith("error: nothing says on what cluster the run is"));
  EXPECT_THAT(refused({"--cluster=none.toml"}), HasSubstr("cannot open none.toml"));
  EXPECT_THAT(refused({h100, "--slow=1"}), StartsWith("error: --slow=1: expected a rank and"));
  EXPECT_THAT(refused({h100, "--slow=9:2"}),
              StartsWith("error: slow rank 9 (--slow): expected one of the ranks 0 to 0"));
  EXPECT_THAT(refused({h100, "--slow=0:inf"}),
              HasSubstr("takes inf times as long: expected 0.01 to"));
  EXPECT_THAT(refused({h100, "--slow=0:2", "--slow=0:3"}), HasSubstr("each rank once"));
  EXPECT_THAT(refused({h100, "--tokens=many"}),
              StartsWith("error: --tokens=many: expected how many tokens"));
  for (const char* const sweep : {"--sweep=parallel.ranks",
                                  "--sweep=parallel.ranks=",
                                  "--sweep=parallel.ranks=8..4",
                                  "--sweep=parallel.ranks=a..4",
                                  "--sweep=parallel.ranks=1,,2"}) {
    EXPECT_THAT(refused({h100, sweep}), HasSubstr("expected a key and its values")) << sweep;
  }
  EXPECT_THAT(refused({h100, "--sweep=foo.bar=1,2"}), HasSubstr("no value makes a run: "));
  EXPECT_THAT(refused({h100, "--sweep=cluster.file=a,b"}), HasSubstr("which says the same"));
  EXPECT_THAT(refused({h100, "--sweep=parallel.ranks=1,2", "--tokens=1G"}),
              HasSubstr("it is about one run"));
  EXPECT_THAT(refused({cluster("virtual-2"), "--parallel.ranks=2"}), HasSubstr("memory_bandwidth"));
}

}  // namespace
}  // namespace tessera
