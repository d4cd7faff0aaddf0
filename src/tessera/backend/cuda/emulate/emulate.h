#pragma once

// The words of CUDA C++ that our kernels use, for a plain C++ compiler: tests run the kernels' own
// text on the CPU. A block's threads are fibers of one thread, which change at barriers, those of
// a warp where its lanes exchange values; blocks run one after the other, and so do kernels that
// several threads launch.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

// The names are CUDA's, and so is that they are global.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __restrict__ __restrict
#define __launch_bounds__(...)

namespace tessera::cuda {

struct Coordinate {
  unsigned x = 0;
};

inline Coordinate threadIdx;
inline Coordinate blockIdx;
inline Coordinate blockDim;
inline Coordinate gridDim;

using std::isnan;

// Waits until all threads of the block have come here.
void __syncthreads();

// Gives `bytes` of this thread's to its warp; returns those of its 32 lanes, one after the other,
// valid until this thread's next exchange. All threads of the warp come here.
const std::byte* exchange_bytes(const void* own, std::size_t bytes);

// How many lanes this thread's warp has.
inline unsigned lanes_of_warp() {
  return std::min(blockDim.x - threadIdx.x / 32 * 32, 32U);
}

// What all lanes give; zeros of lanes that a small block does not have.
template <class T>
std::array<T, 32> exchange(const T& own) {
  std::array<T, 32> all = {};
  const std::byte* const given = exchange_bytes(&own, sizeof own);
  std::memcpy(all.data(), given, lanes_of_warp() * sizeof own);
  return all;
}

template <class T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int lanes) {
  const unsigned lane = (threadIdx.x % 32) ^ static_cast<unsigned>(lanes);
  const std::byte* const given = exchange_bytes(&value, sizeof value);
  T other = {};
  if (lane < lanes_of_warp()) {
    std::memcpy(&other, &given[lane * sizeof value], sizeof value);
  }
  return other;
}

template <class T>
T atomicCAS(T* place, T expected, T wanted) {
  const T found = *place;
  *place = found == expected ? wanted : found;
  return found;
}

template <class T>
T atomicAdd(T* place, T amount) {
  const T found = *place;
  *place += amount;
  return found;
}

template <class T>
T atomicMax(T* place, T value) {
  const T found = *place;
  *place = found < value ? value : found;
  return found;
}

// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

// In which order a block's threads run between two barriers. A kernel whose results depend on it
// lacks a barrier.
enum class ThreadOrder { kForward, kBackward };

void set_thread_order(ThreadOrder order);

// From now on kernels of this thread are put there instead of being run; null: they run again.
void record_into(std::vector<std::function<void()>>* calls);

// Puts the call there, if kernels are.
bool was_recorded(const std::function<void()>& call);

// Runs `body`, which owns what it needs, as every thread of every block. Errors: kInternal where
// some threads of a block wait at a barrier that others never reach.
void emulate(const char* name, std::int64_t blocks, int threads, const std::function<void()>& body);

}  // namespace tessera::cuda
