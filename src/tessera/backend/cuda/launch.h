#pragma once

// For the ops' _cuda.cu files: how a kernel is started. nvcc compiles them for a device; a C++
// compiler compiles the same text for emulate/, where tests run it on the CPU.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tessera/backend/cuda/context.h"
#include "tessera/backend/cuda/fault.h"

#ifndef __CUDACC__
#include "tessera/backend/cuda/emulate/emulate.h"
#endif

namespace tessera::cuda {

// Threads of a block in most of our kernels: a power of two, for trees of sums.
inline constexpr int kThreads = 256;

// Blocks that keep the device busy with `items`, one a thread; kernels loop over what is left.
inline std::int64_t blocks_for(const Context& context, std::int64_t items) {
  const std::int64_t wanted = (items + kThreads - 1) / kThreads;
  return std::clamp<std::int64_t>(wanted, 1, std::int64_t{16} * context.multiprocessors());
}

// Blocks for `rows` rows, one a block.
inline std::int64_t blocks_of_rows(const Context& context, std::int64_t rows) {
  return std::min<std::int64_t>(rows, std::int64_t{32} * context.multiprocessors());
}

// Starts kernel(arguments...) with `blocks` blocks of kBlock threads as the next of the stream;
// nothing for no blocks. `name` is for errors.
template <int kBlock = kThreads, class... Parameters, class... Arguments>
void launch([[maybe_unused]] const Context& context,
            const char* name,
            std::int64_t blocks,
            void (*kernel)(Parameters...),
            Arguments... arguments) {
  if (blocks == 0) {
    return;
  }
#ifdef __CUDACC__
  kernel<<<static_cast<unsigned>(blocks), kBlock, 0, context.stream()>>>(
      static_cast<Parameters>(arguments)...);
  check_launch(name);
#else
  emulate(name, blocks, kBlock, [=] { kernel(static_cast<Parameters>(arguments)...); });
#endif
}

#if defined(__CUDACC__) || defined(TESSERA_EMULATED_CUDA)

// The number of this thread among all of the launch, and how many there are.
__device__ inline std::int64_t first_item() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

__device__ inline std::int64_t num_threads() {
  return std::int64_t{gridDim.x} * blockDim.x;
}

// combine(a, b) over the values of the block's threads, on each of them, by a tree: every thread of
// the block calls it.
template <class T, class Combine>
__device__ T block_fold(T value, const Combine& combine) {
  __shared__ T values[kThreads];
  values[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      values[threadIdx.x] = combine(values[threadIdx.x], values[threadIdx.x + half]);
    }
    __syncthreads();
  }
  const T result = values[0];
  __syncthreads();  // before the next one writes
  return result;
}

template <class T>
__device__ T block_sum(T value) {
  return block_fold(value, [](T a, T b) { return a + b; });
}

// NaNs lose.
__device__ inline float block_max(float value) {
  return block_fold(value, [](float a, float b) { return fmaxf(a, b); });
}

// Notes the first fault.
__device__ inline void report(
    Fault* fault, FaultKind kind, std::int32_t value, std::int64_t place, std::int64_t limit) {
  if (atomicCAS(&fault->kind, 0, static_cast<std::int32_t>(kind)) == 0) {
    fault->value = value;
    fault->place = place;
    fault->limit = limit;
  }
}

#endif

}  // namespace tessera::cuda
