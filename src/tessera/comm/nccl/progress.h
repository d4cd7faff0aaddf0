#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace tessera {

// Enqueues: `word`, in memory that the host and the device share, becomes `value`. What is recorded
// of the stream holds it, too.
cudaError_t enqueue_store(cudaStream_t stream, std::uint32_t* word, std::uint32_t value);

}  // namespace tessera
