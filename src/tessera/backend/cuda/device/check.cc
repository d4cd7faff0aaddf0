#include "tessera/backend/cuda/device/check.h"

#include <cstddef>

#include "tessera/backend/cuda/device/context.h"
#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

// What to do about the device. What becomes of a run, its trainer says.
std::string_view advice(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) {
    return "end what else uses the device, or set memory.recompute = \"full\" or a smaller "
           "train.microbatch";
  }
  if (error == cudaErrorECCUncorrectable || error == cudaErrorNvlinkUncorrectable) {
    return "the device is faulty (nvidia-smi -q shows its counts): have it reset or replaced";
  }
  if (error == cudaErrorDevicesUnavailable || error == cudaErrorDeviceUninitialized) {
    return "another process holds the device, or it is gone: look at nvidia-smi";
  }
  if (error == cudaErrorNoKernelImageForDevice) {
    return "this build has no kernels for the device: tessera doctor says for which it has";
  }
  if (error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure ||
      error == cudaErrorMisalignedAddress) {
    return "a kernel failed, which is an error in Tessera or in the device: if it comes again, run "
           "under compute-sanitizer and report it";
  }
  return "the device may be gone: look at nvidia-smi, and for Xid in the system's log";
}

}  // namespace

void check(cudaError_t result, std::string_view call, std::source_location place) {
  if (result != cudaSuccess) {
    // The state that the runtime keeps for the next call.
    static_cast<void>(cudaGetLastError());
    fail(result == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDeviceError,
         "{} failed with {} ({}) at {}:{}: {}",
         call,
         cudaGetErrorName(result),
         cudaGetErrorString(result),
         place.file_name(),
         place.line(),
         advice(result));
  }
}

void check(cublasStatus_t result, std::string_view call, std::source_location place) {
  if (result == CUBLAS_STATUS_SUCCESS) {
    return;
  }
  check_device(call, place);
  const bool is_memory = result == CUBLAS_STATUS_ALLOC_FAILED;
  fail(is_memory ? ErrorCode::kOutOfMemory : ErrorCode::kDeviceError,
       "{} failed with {} ({}) at {}:{}: {}",
       call,
       cublasLtGetStatusName(result),
       cublasLtGetStatusString(result),
       place.file_name(),
       place.line(),
       is_memory ? advice(cudaErrorMemoryAllocation)
                 : "look at nvidia-smi; if it comes again, report it with the run file");
}

void check_device(std::string_view call, std::source_location place) {
  check(cudaGetLastError(), call, place);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), call, place);
}

void check_launch(const char* kernel) {
  check(cudaGetLastError(), kernel);
}

void synchronize(CUstream_st* stream) {
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize()");
}

}  // namespace tessera::cuda
