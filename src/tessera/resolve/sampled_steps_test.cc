#include "tessera/resolve/sampled_steps.h"

#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/config/config.h"
#include "tessera/mesh/cluster.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// Of a small Llama on so many ranks, each a data rank.
class SampleStepsTest : public testing::Test {
 protected:
  Cluster cluster(double spread, std::int64_t ranks) const {
    Cluster cluster;
    cluster.name = "c";
    cluster.source = (directory_.path() / "c.toml").string();
    cluster.device.name = "device";
    cluster.device.memory_bytes = std::int64_t{1} << 40U;
    cluster.device.memory_bandwidth = 1e9;
    cluster.device.peak_flops = {.f32 = 1e9, .bf16 = 1e9};
    cluster.levels = {{.name = "all", .size = ranks, .bandwidth = 1e15}};
    cluster.spread = spread;
    write_test_file(cluster.source, to_toml(cluster));
    return cluster;
  }

  static SimulatedRun run(const Cluster& cluster, std::int64_t ranks) {
    RunConfig config = parse_run_config(
        format("[model]\ndim = 8\nlayers = 1\nheads = 2\nkv_heads = 1\nffn = 16\nvocab = 300\n"
               "[data]\nsequence_length = 8\n[train]\nglobal_batch = {0}\nmicrobatch = 1\n"
               "[parallel]\nranks = {0}\n[state]\npreset = \"ddp\"\n",
               ranks),
        "run.toml");
    config.cluster.file = cluster.source;
    return {config, target_of(cluster), cluster};
  }

 private:
  TestDirectory directory_;
};

// Ranks that wait for each other once a step are as slow as the slowest: the largest of n normal
// variates is below x with probability Phi(x)^n, so that its median of 16 is 1.7235.
TEST_F(SampleStepsTest, AreAsSlowAsTheSlowestRank) {
  constexpr double kSpread = 0.01;
  const Cluster spread = cluster(kSpread, 16);
  const SimulatedRun run = SampleStepsTest::run(spread, 16);
  const double even = to_seconds(run.simulate_drawn({}).step);
  const SampledSteps samples = sample_steps(run, {}, 400);
  ASSERT_EQ(samples.seconds.size(), 400U);
  const double median = (samples.quantile(0.5) / even - 1.0) / kSpread;
  EXPECT_NEAR(median, 1.7235, 0.1);
  // Phi(2.7265)^16 = 0.95
  EXPECT_NEAR((samples.quantile(0.95) / even - 1.0) / kSpread, 2.7265, 0.25);
  EXPECT_LE(samples.seconds.front(), samples.quantile(0.01));
  EXPECT_EQ(samples.quantile(1.0), samples.seconds.back());
}

TEST_F(SampleStepsTest, AreTheSameAgainAndSlowerWithASlowRank) {
  const Cluster spread = cluster(0.01, 4);
  const SimulatedRun run = SampleStepsTest::run(spread, 4);
  const SampledSteps samples = sample_steps(run, {}, 5);
  EXPECT_EQ(sample_steps(run, {}, 5).seconds, samples.seconds);
  const SampledSteps slow = sample_steps(run, {.slow = {{2, 2.0}}}, 5);
  EXPECT_GT(slow.seconds.front(), 1.8 * samples.seconds.back());
}

TEST_F(SampleStepsTest, RefusesWhatHasNone) {
  const auto refused = [this](double spread, std::int64_t ranks) {
    const Cluster of = cluster(spread, ranks);
    const SimulatedRun run = SampleStepsTest::run(of, ranks);
    try {
      sample_steps(run, {}, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
      return std::string(error.what());
    }
    return std::string("nothing refused");
  };
  EXPECT_THAT(refused(0.0, 2), HasSubstr("c.toml: noise.spread: found 0"));
  EXPECT_THAT(refused(0.01, 2048), HasSubstr("samples of 2,048 ranks: expected at most 1,024"));
}

}  // namespace
}  // namespace tessera
