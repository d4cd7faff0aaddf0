// That cuDNN takes the graphs that we write, on a machine without a device: plans are made for an
// H200 as cuDNN describes it. What the graphs compute is tested where they are interpreted
// (cuda_emulated_test), what cuDNN's kernels compute where there is a device (cuda_test).

#include "tessera/backend/cuda/cudnn/cudnn_plan.h"

#include <string>

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cuda/cudnn/flash_graph.h"
#include "tessera/backend/cuda/machine/limits.h"

namespace tessera::cuda {
namespace {

using ::testing::HasSubstr;

// As an H200 serializes itself. Source: NVIDIA's data sheet and the limits of compute capability
// 9.0 in the CUDA C++ Programming Guide.
constexpr const char* kH200 = R"({
  "deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0,
  "multiProcessorCount": 132, "totalGlobalMem": 150754820096, "l2CacheSize": 62914560,
  "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "warpSize": 32,
  "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
  "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024,
  "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0,
  "isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000
})";

// cuDNN's engines for Hopper.
constexpr std::int64_t kHopperForward = 2;
constexpr std::int64_t kHopperBackward = 6;

struct Case {
  const char* name;
  std::int64_t batch;
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t channels;
  bool causal = true;
};

// Heads one behind the other in a token, as projections write them.
FlashProblem problem_of(const Case& c, bool backward, bool any_order = false) {
  FlashProblem problem = {.backward = backward,
                          .causal = c.causal,
                          .any_order = any_order,
                          .scale = 0.125F,
                          .batch = c.batch,
                          .tokens = c.tokens,
                          .heads = c.heads,
                          .kv_heads = c.kv_heads,
                          .channels = c.channels};
  for (std::size_t i = 0; i < kNumFlashTensors; ++i) {
    const auto tensor = static_cast<FlashTensor>(i);
    const bool is_row = tensor == FlashTensor::kLse || tensor == FlashTensor::kDelta;
    const bool is_of_keys = tensor == FlashTensor::kK || tensor == FlashTensor::kV ||
                            tensor == FlashTensor::kDk || tensor == FlashTensor::kDv;
    const std::int64_t token = (is_of_keys ? c.kv_heads : c.heads) * c.channels;
    problem.strides[tensor] =
        tensor == FlashTensor::kDqSum
            ? std::array{c.heads * c.tokens * c.channels, c.channels, c.tokens * c.channels}
        : is_row ? std::array{c.heads * c.tokens, std::int64_t{1}, c.tokens}
                 : std::array{c.tokens * token, token, c.channels};
  }
  return problem;
}

class CudnnPlanOf : public testing::Test {
 protected:
  // Before cuDNN looks for the driver, which it then has.
  static void SetUpTestSuite() {
    ASSERT_NE(::dlopen(TESSERA_STAND_IN_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
  }

  void SetUp() override {
    std::string problem;
    cudnn_ = find_cudnn(problem);
    if (cudnn_ == nullptr) {
      GTEST_SKIP() << problem;
    }
  }

  std::optional<CudnnPlan> plan(const FlashProblem& problem, std::string& reasons) const {
    return plan(problem, flash_workspace_bytes(problem), reasons);
  }

  std::optional<CudnnPlan> plan(const FlashProblem& problem,
                                std::int64_t most_workspace,
                                std::string& reasons) const {
    const FlashGraph written = flash_graph(problem);
    return CudnnPlan::make(
        *cudnn_,
        {.properties = kH200},
        {.graph = written.graph, .most_workspace = most_workspace, .any_order = problem.any_order},
        reasons);
  }

 private:
  const Cudnn* cudnn_ = nullptr;
};

class CudnnPlans : public CudnnPlanOf, public testing::WithParamInterface<Case> {};

// By the engine for Hopper, with the workspace that programs are planned with, but for the slack.
TEST_P(CudnnPlans, TakeAttention) {
  for (const auto& [backward, any_order] : {std::pair{false, false}, {true, false}, {true, true}}) {
    const FlashProblem problem = problem_of(GetParam(), backward, any_order);
    std::string reasons;
    const std::optional<CudnnPlan> made = plan(problem, reasons);
    ASSERT_TRUE(made.has_value()) << reasons;
    EXPECT_EQ(made->engine(), backward ? kHopperBackward : kHopperForward) << reasons;
    EXPECT_EQ(made->workspace_bytes(), flash_workspace_bytes(problem) - kFlashSlack);
  }
}

// Documents within rows: forward.
TEST_P(CudnnPlans, TakeSequencesWithinRows) {
  FlashProblem problem = problem_of(GetParam(), false);
  problem.causal = true;
  problem.strides[FlashTensor::kLse] = {problem.tokens * problem.heads, problem.heads, 1};
  for (const std::int64_t sequences : {1, 16, 64, 65, 300}) {
    problem.sequences = sequences;
    std::string reasons;
    const std::optional<CudnnPlan> made = plan(problem, reasons);
    ASSERT_TRUE(made.has_value()) << sequences << reasons;
    EXPECT_EQ(made->engine(), kHopperForward) << reasons;
    const std::int64_t planned = flash_workspace_bytes(problem) - kFlashSlack;
    EXPECT_EQ(made->workspace_bytes(), sequences == 65 ? planned - 256 : planned) << sequences;
  }
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         CudnnPlans,
                         testing::Values(Case{"llama_8b", 1, 8192, 32, 8, 128},
                                         Case{"gpt2", 32, 1024, 12, 12, 64},
                                         Case{"debug", 4, 512, 16, 16, 16},
                                         Case{"odd_tokens", 3, 1000, 6, 3, 40},
                                         Case{"few_tokens", 1, 65, 2, 1, 128},
                                         Case{"wide", 2, 333, 4, 4, 96},
                                         Case{"not_causal", 2, 256, 8, 2, 64, false}),
                         case_name);

TEST(LargestPart, IsTheWholeWhereItFits) {
  const FlashProblem problem = problem_of({"gpt2", 32, 1024, 12, 12, 64}, true);
  EXPECT_EQ(largest_part(problem), problem);
}

TEST(LargestPart, IsRowsOfABatch) {
  const FlashProblem problem = problem_of({"rows", 12, 4096, 16, 4, 128}, true);
  const FlashProblem part = largest_part(problem);
  EXPECT_EQ(part.batch, 4);
  EXPECT_EQ(part.heads, 16);
  EXPECT_LE(flash_workspace_bytes(part) - kFlashSlack, limits().flash_workspace);
}

// In any order the gradients' f32 sums are what takes memory.
TEST(LargestPart, CountsScratch) {
  const FlashProblem problem = problem_of({"many", 64, 2048, 32, 32, 128}, true, true);
  const FlashProblem part = largest_part(problem);
  EXPECT_EQ(part.batch, 64);
  EXPECT_EQ(largest_part(problem_of({"more", 128, 2048, 32, 32, 128}, true, true)).batch, 64);
  EXPECT_GT(flash_scratch(part).library, std::int64_t{2} << 30U);
}

// Two times 2.2 GB for the 8B's heads at 8192 tokens.
TEST(LargestPart, IsGroupsOfHeadsOfARow) {
  const FlashProblem part = largest_part(problem_of({"llama_8b", 2, 8192, 32, 8, 128}, true));
  EXPECT_EQ(part.batch, 1);
  EXPECT_EQ(part.heads, 16);
  EXPECT_EQ(part.kv_heads, 4);
}

TEST(LargestPart, IsNoneOfAVeryLongRow) {
  EXPECT_EQ(largest_part(problem_of({"long", 1, 131072, 32, 8, 128}, true)).batch, 0);
}

// Nobody runs a plan that takes more than it was given.
TEST_F(CudnnPlanOf, TooLittleWorkspaceIsNone) {
  const FlashProblem problem = problem_of({"small", 1, 128, 4, 4, 64}, true);
  std::string reasons;
  EXPECT_FALSE(plan(problem, 1000, reasons));
  EXPECT_THAT(reasons, HasSubstr("bytes of workspace, expected at most"));
}

TEST_F(CudnnPlanOf, AGraphThatItDoesNotKnowIsNone) {
  const FlashProblem problem = problem_of({"very_wide", 1, 128, 4, 4, 1024}, true);
  std::string reasons;
  EXPECT_FALSE(plan(problem, reasons));
  EXPECT_THAT(reasons, HasSubstr("engines"));
}

}  // namespace
}  // namespace tessera::cuda
