#include "tessera/comm/nccl/nccl_check.h"

namespace tessera {
namespace {

constexpr std::string_view kMoreMemory =
    "NCCL needs more of the device than the plan leaves it: set memory.limit_bytes to less, or end "
    "what else uses the device";

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
    const char* const said = ncclGetLastError(comm);
    const std::string_view last = said == nullptr ? "" : said;
    // It has no code for that.
    const bool is_memory =
        result == ncclUnhandledCudaError && last.find("out of memory") != std::string_view::npos;
    fail(is_memory ? ErrorCode::kOutOfMemory : code_of(result),
         "{} failed: {}{}{}: {}",
         call,
         ncclGetErrorString(result),
         last.empty() ? "" : "; ",
         last,
         is_memory ? kMoreMemory : advice(result));
  }
}

void check_cuda(cudaError_t result, std::string_view call) {
  if (result != cudaSuccess) {
    // The state that the runtime keeps for the next call.
    static_cast<void>(cudaGetLastError());
    const bool is_memory = result == cudaErrorMemoryAllocation;
    fail(is_memory ? ErrorCode::kOutOfMemory : ErrorCode::kDeviceError,
         "{} failed with {} ({}): {}",
         call,
         cudaGetErrorName(result),
         cudaGetErrorString(result),
         is_memory ? kMoreMemory : "look at nvidia-smi and at the system's log");
  }
}

}  // namespace tessera
