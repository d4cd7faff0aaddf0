#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include <cuda_runtime_api.h>

#include "tessera/backend/cuda/device/check.h"

namespace tessera::cuda {

// Memory of the host that devices read and write by themselves.
using PinnedMemory = Handle<std::byte*, cudaFreeHost>;

// Errors: kOutOfMemory where no more memory can be pinned; kDeviceError.
PinnedMemory allocate_pinned(std::size_t bytes);

// Copies between the host's memory and the device's by way of pinned memory, which the device reads
// and writes by itself: the host's part of a copy and the device's take turns in two buffers. Waits
// for one stream at most, whatever else runs on the device or is recorded there.
class Staging {
 public:
  static constexpr std::size_t kBufferBytes = std::size_t{8} << 20U;

  // For copies of at most `bytes` at a time: as much as one of them fills, rather than
  // kBufferBytes.
  static constexpr std::size_t buffer_bytes_for(std::size_t bytes) {
    constexpr std::size_t kPage = 4096;
    return std::clamp((bytes + kPage - 1) / kPage * kPage, kPage, kBufferBytes);
  }

  // Borrows the stream. `buffer_bytes`: of each of the two, a multiple of 256.
  // Errors: kOutOfMemory where no more memory can be pinned; kDeviceError.
  explicit Staging(cudaStream_t stream, std::size_t buffer_bytes = kBufferBytes);

  // As the next of the stream; `host` may be used again at once.
  void to_device(std::byte* device, const std::byte* host, std::size_t bytes);

  // Behind what the stream was given; returns when it is there.
  void to_host(std::byte* host, const std::byte* device, std::size_t bytes);

 private:
  struct Buffer {
    explicit Buffer(std::size_t bytes);

    PinnedMemory data;
    Handle<cudaEvent_t, cudaEventDestroy> done;  // what the stream was given to do in it
    std::size_t used = 0;
  };

  // A buffer with room, of which the stream is done with all but `used` bytes.
  Buffer& next_room();

  cudaStream_t stream_;
  std::size_t buffer_bytes_;
  std::array<Buffer, 2> buffers_;
  std::size_t current_ = 0;
};

}  // namespace tessera::cuda
