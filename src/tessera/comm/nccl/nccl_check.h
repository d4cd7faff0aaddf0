#pragma once

#include <string_view>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "tessera/base/error.h"

namespace tessera {

// Who must act on a result of NCCL other than success.
ErrorCode code_of(ncclResult_t result);

// Throws unless `result` is ncclSuccess or ncclInProgress, with the call, NCCL's text, what it last
// said of `comm` (or of the process, where that is null), and what to do.
void check_nccl(ncclResult_t result, std::string_view call, ncclComm_t comm = nullptr);

// Throws kDeviceError unless `result` is success, with CUDA's name and text of it.
void check_cuda(cudaError_t result, std::string_view call);

}  // namespace tessera
