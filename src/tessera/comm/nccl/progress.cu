#include "tessera/comm/nccl/progress.h"

namespace tessera {
namespace {

__global__ void store_word(volatile std::uint32_t* word, std::uint32_t value) {
  *word = value;
}

}  // namespace

cudaError_t enqueue_store(cudaStream_t stream, std::uint32_t* word, std::uint32_t value) {
  store_word<<<1, 1, 0, stream>>>(word, value);
  return cudaGetLastError();
}

}  // namespace tessera
