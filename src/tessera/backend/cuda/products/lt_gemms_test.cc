// Which algorithms products take, over a library that stands for cuBLASLt: it proposes, refuses and
// takes its time as a test says, and computes nothing.

#include "tessera/backend/cuda/products/lt_gemms.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "tessera/backend/cuda/machine/limits.h"
#include "tessera/backend/cuda/stand_in/stand_in_machine.h"
#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"

namespace tessera::cuda {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

using Id = std::uint64_t;  // of an algorithm

// What the library was asked to do.
struct Launch {
  Id algorithm = 0;
  std::int32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  const void* argument = nullptr;
  std::int64_t pitch_argument = 0;
  float beta = 0;
};

struct Library {
  std::vector<Id> proposed = {1, 2, 3};
  bool has_gelu = true;
  std::map<Id, float> milliseconds = {{1, 3.0F}, {2, 1.0F}, {3, 2.0F}};
  std::map<Id, cublasStatus_t> failing = {};
  std::vector<Launch> launches = {};
};

Library& library() {
  static Library the_one;
  return the_one;
}

template <class T>
T attribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t which) {
  T value = {};
  auto* const place = static_cast<void*>(&value);
  std::size_t size = 0;
  EXPECT_EQ(cublasLtMatmulDescGetAttribute(description, which, place, sizeof value, &size),
            CUBLAS_STATUS_SUCCESS);
  return value;
}

std::int32_t epilogue_of(cublasLtMatmulDesc_t description) {
  return attribute<std::int32_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE);
}

}  // namespace
}  // namespace tessera::cuda

using tessera::cuda::library;

// The names and the many parameters are CUDA's.
// NOLINTBEGIN(readability-identifier-naming,readability-function-size)
extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* lightHandle) {
  static int handle = 0;
  *lightHandle = reinterpret_cast<cublasLtHandle_t>(&handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t /*lightHandle*/) {
  return CUBLAS_STATUS_SUCCESS;
}

std::size_t cublasLtGetVersion() {
  return 130000;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t /*lightHandle*/,
    cublasLtMatmulDesc_t operationDesc,
    cublasLtMatrixLayout_t /*Adesc*/,
    cublasLtMatrixLayout_t /*Bdesc*/,
    cublasLtMatrixLayout_t /*Cdesc*/,
    cublasLtMatrixLayout_t /*Ddesc*/,
    cublasLtMatmulPreference_t /*preference*/,
    int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[],
    int* returnAlgoCount) {
  const std::int32_t epilogue = tessera::cuda::epilogue_of(operationDesc);
  const bool is_plain = epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS;
  *returnAlgoCount = 0;
  if (!is_plain && !library().has_gelu) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (const std::uint64_t id : library().proposed) {
    if (*returnAlgoCount < requestedAlgoCount) {
      heuristicResultsArray[*returnAlgoCount] = {};
      heuristicResultsArray[*returnAlgoCount].algo.data[0] = id;
      ++*returnAlgoCount;
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*lightHandle*/,
                                       cublasLtMatmulDesc_t /*operationDesc*/,
                                       cublasLtMatrixLayout_t /*Adesc*/,
                                       cublasLtMatrixLayout_t /*Bdesc*/,
                                       cublasLtMatrixLayout_t /*Cdesc*/,
                                       cublasLtMatrixLayout_t /*Ddesc*/,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  return std::ranges::count(library().proposed, algo->data[0]) > 0 ? CUBLAS_STATUS_SUCCESS
                                                                   : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*lightHandle*/,
                              cublasLtMatmulDesc_t computeDesc,
                              const void* /*alpha*/,
                              const void* /*A*/,
                              cublasLtMatrixLayout_t /*Adesc*/,
                              const void* /*B*/,
                              cublasLtMatrixLayout_t /*Bdesc*/,
                              const void* beta,
                              const void* /*C*/,
                              cublasLtMatrixLayout_t /*Cdesc*/,
                              void* /*D*/,
                              cublasLtMatrixLayout_t /*Ddesc*/,
                              const cublasLtMatmulAlgo_t* algo,
                              void* /*workspace*/,
                              std::size_t /*workspaceSizeInBytes*/,
                              cudaStream_t /*stream*/) {
  using tessera::cuda::attribute;
  const std::uint64_t id = algo->data[0];
  if (const auto failing = library().failing.find(id); failing != library().failing.end()) {
    return failing->second;
  }
  tessera::cuda::Launch launch = {
      .algorithm = id,
      .epilogue = tessera::cuda::epilogue_of(computeDesc),
      .bias = attribute<const void*>(computeDesc, CUBLASLT_MATMUL_DESC_BIAS_POINTER),
      .argument = attribute<const void*>(computeDesc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER),
      .pitch_argument = attribute<std::int64_t>(computeDesc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD)};
  std::memcpy(&launch.beta, beta, sizeof launch.beta);
  library().launches.push_back(launch);
  return CUBLAS_STATUS_SUCCESS;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}

// Between two events there is only what was launched last.
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t /*start*/, cudaEvent_t /*end*/) {
  *ms = library().milliseconds.at(library().launches.back().algorithm);
  return cudaSuccess;
}
}

// NOLINTEND(readability-identifier-naming,readability-function-size)

namespace tessera::cuda {
namespace {

constexpr Gemm kGemm = {.m = 64,
                        .n = 32,
                        .k = 16,
                        .pitch_a = 16,
                        .pitch_b = 32,
                        .pitch_c = 32,
                        .input = DType::kBF16,
                        .output = DType::kBF16};

class LtGemmsTest : public testing::Test {
 protected:
  LtGemmsTest() : workspace_(static_cast<std::size_t>(limits().gemm_workspace)) {
    stand_in_machine() = {};
    stand_in_machine().devices = {{}};
    library() = {};
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, 0), cudaSuccess);
  }

  LtGemmsTest(const LtGemmsTest&) = delete;
  LtGemmsTest& operator=(const LtGemmsTest&) = delete;

  ~LtGemmsTest() override { cudaStreamDestroy(stream_); }

  std::filesystem::path file() const { return directory_.path() / "gemms.txt"; }

  // The algorithm by which a product runs, and how many launches that took.
  struct Taken {
    Id algorithm;
    std::size_t launches;

    friend bool operator==(const Taken&, const Taken&) = default;
  };

  Taken run(Gemms& gemms, const Gemm& gemm = kGemm) {
    library().launches.clear();
    gemms.run(stream_, gemm, {.a = &a_, .b = &b_, .c = &c_}, workspace_);
    return {library().launches.back().algorithm, library().launches.size()};
  }

  bool run_gelu(Gemms& gemms, const Gemm& gemm, const GeluOperands& operands) {
    library().launches.clear();
    return gemms.run_gelu(stream_, gemm, operands, workspace_);
  }

  // Of three algorithms in three rounds, five each, and then the product.
  static constexpr std::size_t kTimed = 46;

  alignas(256) std::array<std::byte, 256> a_ = {};
  alignas(256) std::array<std::byte, 256> b_ = {};
  alignas(256) std::array<std::byte, 256> c_ = {};
  alignas(256) std::array<std::byte, 256> argument_ = {};
  alignas(256) std::array<std::byte, 256> bias_ = {};

 private:
  TestDirectory directory_;
  cudaStream_t stream_ = nullptr;
  std::vector<std::byte> workspace_;
};

TEST_F(LtGemmsTest, TakesTheFastestAndKeepsIt) {
  {
    const auto gemms = make_lt_gemms({.algorithm_files = {file()}});
    EXPECT_EQ(run(*gemms), (Taken{2, kTimed}));
    EXPECT_EQ(run(*gemms), (Taken{2, 1}));
    gemms->keep_choices();
  }
  library().milliseconds[3] = 0.5F;
  EXPECT_EQ(run(*make_lt_gemms({.algorithm_files = {file()}})), (Taken{2, 1}));
  EXPECT_EQ(run(*make_lt_gemms({})), (Taken{1, 1}));  // the first proposed
}

// To time it would change what it is added to.
TEST_F(LtGemmsTest, ASumFollowsItsProduct) {
  const auto gemms = make_lt_gemms({.algorithm_files = {file()}});
  run(*gemms);
  Gemm sum = kGemm;
  sum.accumulate = true;
  EXPECT_EQ(run(*gemms, sum), (Taken{2, 1}));
  EXPECT_EQ(library().launches[0].beta, 1.0F);
}

TEST_F(LtGemmsTest, TellsRefusalsFromFailures) {
  library().failing = {{2, CUBLAS_STATUS_EXECUTION_FAILED}};
  EXPECT_EQ(run(*make_lt_gemms({.algorithm_files = {file()}})).algorithm, 3U);
  for (const Id id : {1, 2, 3}) {
    library().failing[id] = CUBLAS_STATUS_NOT_SUPPORTED;
  }
  EXPECT_THAT(error_of(ErrorCode::kUnsupported,
                       [&] { run(*make_lt_gemms({.algorithm_files = {file()}})); }),
              HasSubstr("no algorithm that runs for a product of 64 x 32 x 16"));
  for (const Id id : {1, 2, 3}) {
    library().failing[id] = CUBLAS_STATUS_EXECUTION_FAILED;
  }
  EXPECT_THAT(error_of(ErrorCode::kDeviceError,
                       [&] { run(*make_lt_gemms({.algorithm_files = {file()}})); }),
              HasSubstr("cublasLtMatmul() of 64x32x16"));
}

TEST_F(LtGemmsTest, GivesGeluItsOperands) {
  const auto gemms = make_lt_gemms({});
  EXPECT_TRUE(run_gelu(*gemms,
                       kGemm,
                       {.a = &a_,
                        .b = &b_,
                        .c = &c_,
                        .bias = &bias_,
                        .argument = &argument_,
                        .pitch_argument = 40}));
  EXPECT_EQ(library().launches[0].epilogue, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  EXPECT_EQ(library().launches[0].bias, &bias_);
  EXPECT_EQ(library().launches[0].argument, &argument_);
  EXPECT_EQ(library().launches[0].pitch_argument, 40);
  EXPECT_TRUE(run_gelu(*gemms, kGemm, {.a = &a_, .b = &b_, .c = &c_, .bias = &bias_}));
  EXPECT_EQ(library().launches[0].epilogue, CUBLASLT_EPILOGUE_GELU_BIAS);
  EXPECT_TRUE(run_gelu(
      *gemms, kGemm, {.a = &a_, .b = &b_, .c = &c_, .argument = &argument_, .pitch_argument = 32}));
  EXPECT_EQ(library().launches[0].epilogue, CUBLASLT_EPILOGUE_DGELU);
  EXPECT_EQ(library().launches[0].argument, &argument_);
}

TEST_F(LtGemmsTest, LeavesGeluWhereTheLibraryHasNone) {
  const GeluOperands operands = {.a = &a_, .b = &b_, .c = &c_, .bias = &bias_};
  const auto gemms = make_lt_gemms({.algorithm_files = {file()}});
  Gemm wide = kGemm;
  wide.output = DType::kF32;
  EXPECT_FALSE(run_gelu(*gemms, wide, operands));
  Gemm odd = kGemm;
  odd.pitch_c = 33;
  EXPECT_FALSE(run_gelu(*gemms, odd, operands));
  library().has_gelu = false;
  EXPECT_FALSE(run_gelu(*gemms, kGemm, operands));
  EXPECT_FALSE(run_gelu(*gemms, kGemm, operands));
  EXPECT_THAT(library().launches, IsEmpty());
}

// The leader has files; what each timed differs, until all have heard of it.
TEST_F(LtGemmsTest, RanksTakeTheChoiceOfTheFirst) {
  const auto leader = make_lt_gemms({.algorithm_files = {file()}, .shares_choices = true});
  const auto other = make_lt_gemms({.shares_choices = true});
  const auto exchange = [&](ProductChoices which, const std::vector<std::string>& texts) {
    leader->take_choices(which, texts);
    other->take_choices(which, texts);
  };
  exchange(ProductChoices::kKnown, {leader->choices(ProductChoices::kKnown), ""});
  EXPECT_EQ(run(*leader), (Taken{2, kTimed}));
  Gemm of_other = kGemm;
  of_other.m = 128;
  Gemm sum = kGemm;
  sum.accumulate = true;
  library().milliseconds = {{1, 3.0F}, {2, 2.0F}, {3, 1.0F}};
  EXPECT_EQ(run(*other), (Taken{3, kTimed}));
  EXPECT_EQ(run(*other, sum), (Taken{3, 1}));
  EXPECT_EQ(run(*other, of_other), (Taken{3, kTimed}));
  exchange(ProductChoices::kTimed,
           {leader->choices(ProductChoices::kTimed), other->choices(ProductChoices::kTimed)});
  for (Gemms* const gemms : {leader.get(), other.get()}) {
    EXPECT_EQ(run(*gemms), (Taken{2, 1}));
    EXPECT_EQ(run(*gemms, sum), (Taken{2, 1}));
    EXPECT_EQ(run(*gemms, of_other), (Taken{3, 1}));
    Gemm later = kGemm;
    later.k = 32;
    later.pitch_a = 32;
    EXPECT_EQ(run(*gemms, later), (Taken{1, 1}));  // nobody times any more
    gemms->keep_choices();
  }
  library().launches.clear();
  EXPECT_EQ(run(*make_lt_gemms({.algorithm_files = {file()}}), of_other), (Taken{3, 1}));
}

// The run's file has what the run uses, not all that the user's has.
TEST_F(LtGemmsTest, TheLeaderKeepsWhatIsUsed) {
  Gemm unused = kGemm;
  unused.m = 256;
  {
    const auto earlier = make_lt_gemms({.algorithm_files = {file()}});
    run(*earlier);
    run(*earlier, unused);
    earlier->keep_choices();
  }
  const std::filesystem::path of_run = file().parent_path() / "run.txt";
  const auto leader = make_lt_gemms({.algorithm_files = {of_run, file()}, .shares_choices = true});
  for (const ProductChoices which : {ProductChoices::kKnown, ProductChoices::kTimed}) {
    leader->take_choices(which, std::vector{leader->choices(which)});
    EXPECT_EQ(run(*leader), (Taken{2, 1}));
  }
  leader->keep_choices();
  library().milliseconds[3] = 0.5F;
  const auto later = make_lt_gemms({.algorithm_files = {of_run}});
  EXPECT_EQ(run(*later), (Taken{2, 1}));
  EXPECT_EQ(run(*later, unused), (Taken{3, kTimed}));
}

}  // namespace
}  // namespace tessera::cuda
