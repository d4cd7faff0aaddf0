#include "tessera/backend/cuda/device/staging.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tessera/base/format.h"
#include "tessera/base/units.h"

namespace tessera::cuda {
namespace {

constexpr std::size_t kAlignment = 256;  // of copies by the device

cudaEvent_t create_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags()");
  return event;
}

}  // namespace

PinnedMemory allocate_pinned(std::size_t bytes) {
  void* data = nullptr;
  check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable),
        format("cudaHostAlloc() of {}", format_bytes(static_cast<std::int64_t>(bytes))));
  return PinnedMemory(static_cast<std::byte*>(data));
}

Staging::Buffer::Buffer(std::size_t bytes) : data(allocate_pinned(bytes)), done(create_event()) {}

Staging::Staging(cudaStream_t stream, std::size_t buffer_bytes)
    : stream_(stream),
      buffer_bytes_(buffer_bytes),
      buffers_{Buffer(buffer_bytes), Buffer(buffer_bytes)} {}

Staging::Buffer& Staging::next_room() {
  if (buffers_[current_].used >= buffer_bytes_) {
    check(cudaEventRecord(buffers_[current_].done.get(), stream_), "cudaEventRecord()");
    current_ = 1 - current_;
    check(cudaEventSynchronize(buffers_[current_].done.get()), "cudaEventSynchronize()");
    buffers_[current_].used = 0;
  }
  return buffers_[current_];
}

void Staging::to_device(std::byte* device, const std::byte* host, std::size_t bytes) {
  for (std::size_t copied = 0; copied < bytes;) {
    Buffer& buffer = next_room();
    std::byte* const place = buffer.data.get() + buffer.used;
    const std::size_t size = std::min(bytes - copied, buffer_bytes_ - buffer.used);
    std::memcpy(place, host + copied, size);
    check(cudaMemcpyAsync(device + copied, place, size, cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync() to the device");
    buffer.used += (size + kAlignment - 1) / kAlignment * kAlignment;
    copied += size;
  }
}

// What the stream still has to read of the buffers it reads before it writes there.
void Staging::to_host(std::byte* host, const std::byte* device, std::size_t bytes) {
  const std::size_t parts = (bytes + buffer_bytes_ - 1) / buffer_bytes_;
  const auto size_of = [&](std::size_t part) {
    return std::min(buffer_bytes_, bytes - part * buffer_bytes_);
  };
  for (std::size_t part = 0; part <= parts; ++part) {
    if (part < parts) {
      const Buffer& buffer = buffers_[part % 2];
      check(cudaMemcpyAsync(buffer.data.get(),
                            device + part * buffer_bytes_,
                            size_of(part),
                            cudaMemcpyDeviceToHost,
                            stream_),
            "cudaMemcpyAsync() to the host");
      check(cudaEventRecord(buffer.done.get(), stream_), "cudaEventRecord()");
    }
    if (part > 0) {
      const Buffer& buffer = buffers_[(part - 1) % 2];
      check(cudaEventSynchronize(buffer.done.get()), "cudaEventSynchronize()");
      std::memcpy(host + (part - 1) * buffer_bytes_, buffer.data.get(), size_of(part - 1));
    }
  }
  for (Buffer& buffer : buffers_) {
    buffer.used = 0;
  }
}

}  // namespace tessera::cuda
