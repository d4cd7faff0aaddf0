#include "tessera/comm/nccl/nccl_check.h"

namespace tessera {
namespace {

std::string_view advice(ncclResult_t result) {
  if (result == ncclRemoteError) {
    return "look at the log of the rank that is gone";
  }
  if (result == ncclUnhandledCudaError) {
    return "look at nvidia-smi and at the system's log";
  }
  return "start the run with NCCL_DEBUG=WARN in its environment, which says more";
}

}  // namespace

ErrorCode code_of(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return ErrorCode::kPeerFailure;
    case ncclUnhandledCudaError:
    case ncclSystemError:
      return ErrorCode::kDeviceError;
    case ncclInvalidUsage:
      return ErrorCode::kInvalidConfig;
    case ncclSuccess:
    case ncclInternalError:
    case ncclInvalidArgument:
    case ncclInProgress:
    case ncclNumResults:
      break;
  }
  return ErrorCode::kInternal;
}

void check_nccl(ncclResult_t result, std::string_view call, ncclComm_t comm) {
  if (result != ncclSuccess && result != ncclInProgress) {
    const char* const last = ncclGetLastError(comm);
    fail(code_of(result),
         "{} failed: {}{}{}: {}",
         call,
         ncclGetErrorString(result),
         last == nullptr || *last == '\0' ? "" : "; ",
         last == nullptr ? "" : last,
         advice(result));
  }
}

void check_cuda(cudaError_t result, std::string_view call) {
  if (result != cudaSuccess) {
    // The state that the runtime keeps for the next call.
    static_cast<void>(cudaGetLastError());
    fail(ErrorCode::kDeviceError,
         "{} failed with {} ({}): look at nvidia-smi and at the system's log",
         call,
         cudaGetErrorName(result),
         cudaGetErrorString(result));
  }
}

}  // namespace tessera
