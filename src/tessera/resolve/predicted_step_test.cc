#include "tessera/resolve/predicted_step.h"

#include <cstdint>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/config/config.h"
#include "tessera/resolve/explanation.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class PredictStepTest : public testing::Test {
 protected:
  // A step of so many sequences on a cluster whose device has `device`.
  PredictedStep predicted(std::int64_t global_batch, const std::string& device) const {
    const std::filesystem::path file = directory_.path() / "c.toml";
    write_test_file(file,
                    format("name = \"c\"\n[device]\nname = \"core\"\nmemory = 0\n{}\n[[levels]]\n"
                           "name = \"one\"\nsize = 1\nbandwidth = \"1 GB/s\"\n"
                           "latency = \"1 us\"\n[host]\ncores = 1\nmemory_bandwidth = \"1 GB/s\"\n",
                           device));
    const RunConfig config = parse_run_config(
        format("[model]\ndim = 8\nlayers = 1\nheads = 2\nkv_heads = 1\nffn = 16\nvocab = 300\n"
               "[data]\nsequence_length = 8\n[train]\nglobal_batch = {}\nmicrobatch = 1\n"
               "[cluster]\nfile = \"{}\"\n",
               global_batch,
               file.string()),
        "run.toml");
    const Explanation facts = explain(config);
    return predict_step(facts.config, facts.run, facts.programs);
  }

  static std::string with_curve(const std::string& peak) {
    return format(
        "memory_bandwidth = \"1 GB/s\"\npeak = {{ {} }}\n[device.curve]\n"
        "matmul = {{ f32 = 0.9, bf16 = 0.9 }}\nk_half = 16\ntile_half = 4\nstream = 0.8\n"
        "kernel = \"1 us\"\nattention = {{ forward = 0.5, backward = 0.5, half = 64 }}\n"
        "comm_share = 0.1",
        peak);
  }

 private:
  TestDirectory directory_;
};

constexpr const char* kPeak = "f32 = \"1 GFLOP/s\", bf16 = \"1 GFLOP/s\"";

// A microbatch takes what it takes.
TEST_F(PredictStepTest, GrowsWithTheStep) {
  const PredictedStep small = predicted(4, with_curve(kPeak));
  const PredictedStep large = predicted(8, with_curve(kPeak));
  ASSERT_TRUE(small.seconds && large.seconds) << small.note;
  EXPECT_THAT(small.constants, StartsWith("the cluster file says no source"));
  EXPECT_EQ(small.note, "");
  EXPECT_GT(*large.seconds, 1.5 * *small.seconds);
  EXPECT_LT(*large.seconds, 2.0 * *small.seconds);
}

TEST_F(PredictStepTest, SaysWhyItIsNotKnown) {
  const PredictedStep large = predicted(16384, with_curve(kPeak));
  EXPECT_FALSE(large.seconds);
  EXPECT_THAT(large.note,
              AllOf(StartsWith("no step is predicted: "),
                    HasSubstr(" instructions would keep the start waiting; tessera simulate")));
}

TEST_F(PredictStepTest, SaysNothingWithoutACurve) {
  const PredictedStep none =
      predicted(4, format("memory_bandwidth = \"1 GB/s\"\npeak = {{ {} }}", kPeak));
  EXPECT_FALSE(none.seconds);
  EXPECT_EQ(none.note, "");
}

}  // namespace
}  // namespace tessera
