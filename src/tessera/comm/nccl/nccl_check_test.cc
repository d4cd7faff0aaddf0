#include "tessera/comm/nccl/nccl_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of_result(ErrorCode code, ncclResult_t result) {
  return error_of(code, [&] { check_nccl(result, "ncclAllReduce()"); });
}

TEST(NcclCheck, SaysWhatFailedAndWhatToDo) {
  EXPECT_THAT(error_of_result(ErrorCode::kPeerFailure, ncclRemoteError),
              AllOf(HasSubstr("ncclAllReduce() failed: "), HasSubstr("the rank that is gone")));
  EXPECT_THAT(error_of_result(ErrorCode::kDeviceError, ncclUnhandledCudaError),
              HasSubstr("nvidia-smi"));
  EXPECT_THAT(error_of_result(ErrorCode::kDeviceError, ncclSystemError),
              HasSubstr("NCCL_DEBUG=WARN"));
  EXPECT_THAT(error_of_result(ErrorCode::kInvalidConfig, ncclInvalidUsage),
              HasSubstr("NCCL_DEBUG=WARN"));
  EXPECT_THAT(error_of_result(ErrorCode::kInternal, ncclInternalError), HasSubstr("NCCL_DEBUG"));
}

// A peer or a device that failed ends the program with 5, a wrong run file with 2.
TEST(NcclCheck, ExitCodes) {
  EXPECT_EQ(exit_code(code_of(ncclRemoteError)), 5);
  EXPECT_EQ(exit_code(code_of(ncclUnhandledCudaError)), 5);
  EXPECT_EQ(exit_code(code_of(ncclSystemError)), 5);
  EXPECT_EQ(exit_code(code_of(ncclInvalidUsage)), 2);
}

TEST(NcclCheck, WhatIsUnderWayIsNoError) {
  EXPECT_NO_THROW(check_nccl(ncclSuccess, "ncclAllReduce()"));
  EXPECT_NO_THROW(check_nccl(ncclInProgress, "ncclAllReduce()"));
}

TEST(NcclCheck, OfCuda) {
  EXPECT_THAT(error_of(ErrorCode::kDeviceError,
                       [] { check_cuda(cudaErrorECCUncorrectable, "cudaEventQuery()"); }),
              AllOf(HasSubstr("cudaEventQuery() failed with cudaErrorECCUncorrectable"),
                    HasSubstr("look at nvidia-smi and at the system's log")));
  EXPECT_THAT(error_of(ErrorCode::kOutOfMemory,
                       [] { check_cuda(cudaErrorMemoryAllocation, "cudaStreamCreate()"); }),
              HasSubstr("set memory.limit_bytes to less"));
}

}  // namespace
}  // namespace tessera
