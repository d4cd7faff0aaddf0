#pragma once

// For the ops' files about CUDA: how a kernel is started. nvcc compiles them for a device; a C++
// compiler compiles the same text for emulate/, where tests run it on the CPU.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tessera/backend/cuda/device/context.h"
#include "tessera/backend/cuda/device/fault.h"

#ifndef __CUDACC__
#include "tessera/backend/cuda/emulate/emulate.h"
#endif

namespace tessera::cuda {

// Threads of a block in most of our kernels: a power of two, for trees of sums.
inline constexpr int kThreads = 256;
inline constexpr int kWarp = 32;

// Blocks that keep the device busy with `items`, one a thread; kernels loop over what is left.
inline std::int64_t blocks_for(const Context& context, std::int64_t items) {
  const std::int64_t wanted = (items + kThreads - 1) / kThreads;
  return std::clamp<std::int64_t>(wanted, 1, std::int64_t{16} * context.multiprocessors());
}

// Blocks for `rows` rows, one a block.
inline std::int64_t blocks_of_rows(const Context& context, std::int64_t rows) {
  return std::min<std::int64_t>(rows, std::int64_t{32} * context.multiprocessors());
}

// Division of a number below 2^31 by one of 1 to 2^31 that the launch knows: without it a kernel's
// indices take longer to find than its elements to move.
// Source: Granlund & Montgomery 1994, "Division by invariant integers using multiplication", 4.2
class Divisor {
 public:
  Divisor() = default;

  explicit Divisor(std::int64_t divisor)
      : divisor_(static_cast<std::uint32_t>(divisor)),
        shift_(static_cast<std::uint32_t>(std::bit_width(divisor_ - 1U))) {
    constexpr unsigned kBits = 31;  // of what is divided
    const std::uint64_t power = std::uint64_t{1} << (kBits + shift_);
    factor_ = static_cast<std::uint32_t>((power + divisor_ - 1) / divisor_);
  }

  constexpr std::uint32_t divisor() const { return divisor_; }

  constexpr std::uint32_t quotient(std::uint32_t number) const {
    constexpr unsigned kBits = 31;
    return static_cast<std::uint32_t>((std::uint64_t{number} * factor_) >> kBits) >> shift_;
  }

 private:
  std::uint32_t divisor_ = 1;
  std::uint32_t shift_ = 0;
  std::uint32_t factor_ = std::uint32_t{1} << 31U;
};

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

// combine(a, b) over the values of a warp's lanes, on each of them: every lane calls it. `combine`
// must not care which of the two is which.
template <class T, class Combine>
__device__ T warp_fold(T value, const Combine& combine) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value = combine(value, __shfl_xor_sync(0xFFFFFFFFU, value, lanes));
  }
  return value;
}

// The same over the block's threads: every thread of the block calls it.
template <int kBlock = kThreads, class T, class Combine>
__device__ T block_fold(T value, const Combine& combine) {
  __shared__ T values[kBlock / kWarp];
  value = warp_fold(value, combine);
  if (threadIdx.x % kWarp == 0) {
    values[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  T result = values[0];
  for (int i = 1; i < kBlock / kWarp; ++i) {
    result = combine(result, values[i]);
  }
  __syncthreads();  // before the next one writes
  return result;
}

template <int kBlock = kThreads, class T>
__device__ T block_sum(T value) {
  return block_fold<kBlock>(value, [](T a, T b) { return a + b; });
}

// NaNs lose.
template <int kBlock = kThreads>
__device__ float block_max(float value) {
  return block_fold<kBlock>(value, [](float a, float b) { return fmaxf(a, b); });
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
