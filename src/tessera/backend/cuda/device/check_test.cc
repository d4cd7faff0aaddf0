// What CUDA's errors become. They are made up, or of what stands for CUDA's runtime.

#include "tessera/backend/cuda/device/check.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cuda/device/context.h"
#include "tessera/backend/cuda/stand_in/stand_in_machine.h"
#include "tessera/base/test_error.h"

namespace tessera::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct Case {
  cudaError_t error;
  ErrorCode code;
  int exit_code;
  std::string text;    // CUDA's
  std::string advice;  // ours
};

std::vector<Case> cases() {
  return {
      {.error = cudaErrorECCUncorrectable,
       .code = ErrorCode::kDeviceError,
       .exit_code = 5,
       .text = "cudaErrorECCUncorrectable (uncorrectable ECC error encountered)",
       .advice = "have it reset or replaced"},
      {.error = cudaErrorDevicesUnavailable,
       .code = ErrorCode::kDeviceError,
       .exit_code = 5,
       .text = "cudaErrorDevicesUnavailable (CUDA-capable device(s) is/are busy or unavailable)",
       .advice = "or it is gone: look at nvidia-smi"},
      {.error = cudaErrorUnknown,
       .code = ErrorCode::kDeviceError,
       .exit_code = 5,
       .text = "cudaErrorUnknown (unknown error)",
       .advice = "the device may be gone: look at nvidia-smi"},
      {.error = cudaErrorMemoryAllocation,
       .code = ErrorCode::kOutOfMemory,
       .exit_code = 4,
       .text = "cudaErrorMemoryAllocation (out of memory)",
       .advice = "memory.recompute = \"full\""},
      {.error = cudaErrorNoKernelImageForDevice,
       .code = ErrorCode::kDeviceError,
       .exit_code = 5,
       .text = "cudaErrorNoKernelImageForDevice (no kernel image is available for execution on "
               "the device)",
       .advice = "tessera doctor"},
      {.error = cudaErrorIllegalAddress,
       .code = ErrorCode::kDeviceError,
       .exit_code = 5,
       .text = "cudaErrorIllegalAddress (an illegal memory access was encountered)",
       .advice = "compute-sanitizer"}};
}

class CudaErrors : public testing::TestWithParam<Case> {};

// A checkpoint, which not every run has, is the trainer's to speak of.
TEST_P(CudaErrors, SayWhatFailedAndWhatToDo) {
  const Case& expected = GetParam();
  const std::string message =
      error_of(expected.code, [&] { check(expected.error, "cudaStreamSynchronize()"); });
  EXPECT_THAT(message,
              AllOf(StartsWith("cudaStreamSynchronize() failed with " + expected.text + " at "),
                    HasSubstr("backend/cuda/device/check_test.cc:"),
                    HasSubstr(expected.advice),
                    Not(HasSubstr("checkpoint"))));
  EXPECT_EQ(exit_code(expected.code), expected.exit_code);
}

INSTANTIATE_TEST_SUITE_P(All, CudaErrors, testing::ValuesIn(cases()));

TEST(Check, LetsSuccessPass) {
  check(cudaSuccess, "cudaMalloc()");
  check(CUBLAS_STATUS_SUCCESS, "cublasLtMatmul()");
  check_launch("rms_norm");
}

TEST(Check, NamesWhatCublasSays) {
  EXPECT_THAT(error_of(ErrorCode::kDeviceError,
                       [] { check(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmul()"); }),
              AllOf(StartsWith("cublasLtMatmul() failed with CUBLAS_STATUS_NOT_SUPPORTED ("),
                    HasSubstr("check_test.cc:")));
}

// A library's code says little where the device has failed.
TEST(Check, NamesTheDevicesErrorBehindCublas) {
  stand_in_machine().devices[0].error = cudaErrorECCUncorrectable;
  EXPECT_THAT(error_of(ErrorCode::kDeviceError,
                       [] { check(CUBLAS_STATUS_EXECUTION_FAILED, "cublasLtMatmul()"); }),
              AllOf(StartsWith("cublasLtMatmul() failed with cudaErrorECCUncorrectable ("),
                    HasSubstr("have it reset or replaced")));
  stand_in_machine() = {};
  check_device("cublasLtMatmul()");
}

TEST(Check, KnowsWhereCublasFindsNoMemory) {
  EXPECT_THAT(error_of(ErrorCode::kOutOfMemory,
                       [] { check(CUBLAS_STATUS_ALLOC_FAILED, "cublasLtCreate()"); }),
              AllOf(StartsWith("cublasLtCreate() failed with CUBLAS_STATUS_ALLOC_FAILED ("),
                    HasSubstr("memory.recompute = \"full\"")));
}

// The runtime keeps an error for who asks next: a kernel's launch, which has no other way to tell.
TEST(Check, TakesTheErrorThatTheRuntimeKeeps) {
  stand_in_machine().devices.clear();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  EXPECT_THAT(error_of(ErrorCode::kDeviceError, [] { check_launch("rms_norm"); }),
              StartsWith("rms_norm failed with cudaErrorNoDevice ("));
  check_launch("swiglu");

  EXPECT_EQ(cudaGetDeviceCount(&count), error);
  EXPECT_THROW(check(error, "cudaGetDeviceCount()"), Error);
  check_launch("swiglu");
  stand_in_machine() = {};
}

}  // namespace
}  // namespace tessera::cuda
