// The plugin: the backend on one CUDA device.

#include <cstddef>
#include <memory>
#include <string_view>

#include <cuda_runtime_api.h>

#include "tessera/backend/backend.h"
#include "tessera/backend/cuda/check.h"
#include "tessera/backend/cuda/context.h"
#include "tessera/backend/cuda/cuda_plugin.h"
#include "tessera/backend/cuda/dispatch.h"
#include "tessera/backend/cuda/draw.h"
#include "tessera/backend/cuda/fault.h"
#include "tessera/backend/cuda/find_devices.h"
#include "tessera/backend/cuda/lt_gemms.h"
#include "tessera/base/error.h"
#include "tessera/base/mapping.h"
#include "tessera/base/units.h"

namespace tessera::cuda {
namespace {

using Stream = Handle<cudaStream_t, cudaStreamDestroy>;

// Zeroed memory of the device.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) {
    if (bytes == 0) {
      return;
    }
    check(cudaMalloc(&data_, bytes),
          format("cudaMalloc() of {}", format_bytes(static_cast<std::int64_t>(bytes))));
    try {
      check(cudaMemset(data_, 0, bytes), "cudaMemset()");
    } catch (...) {
      cudaFree(data_);
      throw;
    }
  }

  ~DeviceMemory() { cudaFree(data_); }

  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

class CudaArena final : public Arena {
 public:
  explicit CudaArena(std::int64_t bytes)
      : device_(static_cast<std::size_t>(bytes)),
        host_(static_cast<std::size_t>(bytes), "the host's side of the arena") {}

  std::byte* data() override { return device_.data(); }

  std::byte* host() override { return host_.data(); }

  void to_device(std::int64_t offset, std::int64_t bytes) override {
    check(cudaMemcpy(data() + offset,
                     host() + offset,
                     static_cast<std::size_t>(bytes),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy() to the device");
    // From pageable memory it may return before the last bytes are there.
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize()");
  }

  void to_host(std::int64_t offset, std::int64_t bytes) override {
    check(cudaMemcpy(host() + offset,
                     data() + offset,
                     static_cast<std::size_t>(bytes),
                     cudaMemcpyDeviceToHost),
          "cudaMemcpy() to the host");
  }

 private:
  DeviceMemory device_;
  // Its pages take memory from their first touch, so that it costs what the host reads and writes.
  Mapping host_;
};

cudaStream_t create_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags()");
  return stream;
}

int select_device(std::int64_t number) {
  const int ordinal = ordinal_of(number);
  check(cudaSetDevice(ordinal), "cudaSetDevice()");
  return ordinal;
}

int multiprocessors_of(int ordinal) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal),
        "cudaDeviceGetAttribute()");
  return count;
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::int64_t number)
      : ordinal_(select_device(number)),
        stream_(create_stream()),
        fault_(sizeof(Fault)),
        gemms_(make_lt_gemms()),
        context_(stream_.get(),
                 reinterpret_cast<Fault*>(fault_.data()),
                 *gemms_,
                 multiprocessors_of(ordinal_)) {
    // Before another stream uses it.
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize()");
  }

  std::string_view name() const override { return "cuda"; }

  std::unique_ptr<Arena> allocate(std::int64_t bytes) override {
    auto arena = std::make_unique<CudaArena>(bytes);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize()");
    return arena;
  }

  void draw(const Draw& draw, const View& out) override {
    draw_elements(context_, draw, out);
    check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize()");
  }

  std::int64_t workspace_bytes(const Op& op,
                               std::span<const View> operands,
                               std::span<const View> results) override {
    return op_workspace_bytes(op, operands, results);
  }

  void run(const Op& op, const Views& views, StreamId stream) override {
    TESSERA_REQUIRE(
        stream == StreamId{0},
        ErrorCode::kUnsupported,
        "a program of several streams on a CUDA device: this version runs one rank there");
    run_op(context_, op, views);
  }

  void synchronize() override {
    check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize()");
    Fault found;
    check(cudaMemcpy(&found, fault_.data(), sizeof found, cudaMemcpyDeviceToHost), "cudaMemcpy()");
    if (found.kind != 0) {
      check(cudaMemset(fault_.data(), 0, sizeof found), "cudaMemset()");
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize()");
      throw_fault(found);
    }
  }

  // No kernel waits for other ranks.
  void abort(std::string_view /*reason*/) override {}

 private:
  int ordinal_;
  Stream stream_;
  DeviceMemory fault_;
  std::unique_ptr<Gemms> gemms_;
  Context context_;
};

Backend* open_backend(std::int64_t number) {
  return std::make_unique<CudaBackend>(number).release();
}

}  // namespace
}  // namespace tessera::cuda

extern "C" const tessera::CudaPlugin* tessera_cuda_plugin() {
  static constexpr tessera::CudaPlugin kPlugin = {.abi = tessera::kCudaPluginAbi,
                                                  .version = TESSERA_VERSION,
                                                  .find = tessera::cuda::find_devices,
                                                  .open = tessera::cuda::open_backend};
  return &kPlugin;
}
