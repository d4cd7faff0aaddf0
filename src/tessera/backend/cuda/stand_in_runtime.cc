#include "tessera/backend/cuda/stand_in_runtime.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "tessera/backend/cuda/stand_in_machine.h"

namespace {

using Work = CUstream_st::Work;
using tessera::cuda::StandInDevice;
using tessera::cuda::StandInMachine;

struct NamedError {
  cudaError_t error;
  const char* name;
  const char* text;
};

// As CUDA has them.
constexpr std::array kErrors = {
    NamedError{cudaSuccess, "cudaSuccess", "no error"},
    NamedError{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    NamedError{cudaErrorInsufficientDriver,
               "cudaErrorInsufficientDriver",
               "CUDA driver version is insufficient for CUDA runtime version"},
    NamedError{cudaErrorDevicesUnavailable,
               "cudaErrorDevicesUnavailable",
               "CUDA-capable device(s) is/are busy or unavailable"},
    NamedError{cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    NamedError{
        cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized", "invalid device context"},
    NamedError{cudaErrorNoKernelImageForDevice,
               "cudaErrorNoKernelImageForDevice",
               "no kernel image is available for execution on the device"},
    NamedError{cudaErrorECCUncorrectable,
               "cudaErrorECCUncorrectable",
               "uncorrectable ECC error encountered"},
    NamedError{cudaErrorNvlinkUncorrectable,
               "cudaErrorNvlinkUncorrectable",
               "uncorrectable NVLink error detected during the execution"},
    NamedError{cudaErrorIllegalAddress,
               "cudaErrorIllegalAddress",
               "an illegal memory access was encountered"},
    NamedError{cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    NamedError{cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    NamedError{cudaErrorSystemDriverMismatch,
               "cudaErrorSystemDriverMismatch",
               "system has unsupported display driver / cuda driver combination"},
    NamedError{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

// CUDA's interface has no place for these but where it has them itself.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
thread_local int selected_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
std::mutex streams_mutex;

// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

const NamedError* find_error(cudaError_t error) {
  const auto* const found = std::ranges::find(kErrors, error, &NamedError::error);
  return found == kErrors.end() ? nullptr : found;
}

const StandInDevice& device_at(int number) {
  return tessera::cuda::stand_in_machine().devices.at(static_cast<std::size_t>(number));
}

cudaError_t count_error() {
  const StandInMachine& machine = tessera::cuda::stand_in_machine();
  if (machine.count_error != 0) {
    return static_cast<cudaError_t>(machine.count_error);
  }
  if (machine.driver_version < CUDART_VERSION / 1000 * 1000) {
    return cudaErrorInsufficientDriver;
  }
  return machine.devices.empty() ? cudaErrorNoDevice : cudaSuccess;
}

}  // namespace

tessera::cuda::StandInMachine& tessera::cuda::stand_in_machine() {
  static StandInMachine machine;
  return machine;
}

// Names and types here are CUDA's.
// NOLINTBEGIN(readability-identifier-naming, google-runtime-int)

struct CUgraph_st {
  std::vector<Work> work;
};

struct CUgraphExec_st {
  std::vector<Work> work;
};

// What a stream had been given when it was last recorded.
struct CUevent_st {
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::size_t recorded = 0;
  std::size_t done = 0;
};

CUstream_st::CUstream_st(int device_of_it)
    : device(device_of_it), thread_([this](const std::stop_token& stop) { loop(stop); }) {}

CUstream_st::~CUstream_st() {
  wait();
  thread_.request_stop();
  changed_.notify_all();
}

void CUstream_st::give(Work work) {
  if (recorded != nullptr) {
    recorded->work.push_back(std::move(work));
    return;
  }
  const std::scoped_lock lock(mutex_);
  work_.push_back(std::move(work));
  changed_.notify_all();
}

bool CUstream_st::is_done() {
  const std::scoped_lock lock(mutex_);
  return work_.empty();
}

void CUstream_st::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return work_.empty(); });
}

void CUstream_st::loop(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (work_.empty()) {
      changed_.wait(lock, stop, [&] { return !work_.empty(); });
      continue;
    }
    const Work next = work_.front();
    lock.unlock();
    next();
    lock.lock();
    work_.pop_front();
    changed_.notify_all();
  }
}

namespace {

std::set<cudaStream_t>& streams() {
  static std::set<cudaStream_t> all;
  return all;
}

// What it was given, all streams of the device.
void wait_for_device() {
  std::vector<cudaStream_t> all;
  {
    const std::scoped_lock lock(streams_mutex);
    std::ranges::copy_if(streams(), std::back_inserter(all), [](cudaStream_t stream) {
      return stream->device == selected_device;
    });
  }
  for (cudaStream_t stream : all) {
    stream->wait();
  }
}

}  // namespace

extern "C" {

// Of this thread, once.
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

const char* cudaGetErrorName(cudaError_t error) {
  const NamedError* const known = find_error(error);
  return known == nullptr ? "an error" : known->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const NamedError* const known = find_error(error);
  return known == nullptr ? "that tests have no name for" : known->text;
}

cudaError_t cudaDriverGetVersion(int* driverVersion) {
  *driverVersion = tessera::cuda::stand_in_machine().driver_version;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  const cudaError_t error = count_error();
  if (error != cudaSuccess) {
    *count = 0;
    last_error = error;
    return error;
  }
  *count = static_cast<int>(tessera::cuda::stand_in_machine().devices.size());
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  const StandInDevice& found = device_at(device);
  *prop = {};
  prop->uuid.bytes[0] = static_cast<char>(device);
  prop->major = found.major;
  prop->minor = found.minor;
  prop->totalGlobalMem = found.total_bytes;
  found.name.copy(prop->name, std::size(prop->name) - 1);
  return cudaSuccess;
}

// Of the selected device.
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const StandInDevice& found = device_at(selected_device);
  *free = found.free_bytes;
  *total = found.total_bytes;
  last_error = static_cast<cudaError_t>(found.error);
  return last_error;
}

cudaError_t cudaSetDevice(int device) {
  selected_device = device;
  last_error = static_cast<cudaError_t>(device_at(device).error);
  return last_error;
}

cudaError_t cudaMalloc(void** devPtr, std::size_t size) {
  *devPtr = std::malloc(size);
  return cudaSuccess;
}

cudaError_t cudaFree(void* devPtr) {
  wait_for_device();
  std::free(devPtr);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pHost, std::size_t size, unsigned /*flags*/) {
  return cudaMalloc(pHost, size);
}

cudaError_t cudaFreeHost(void* ptr) {
  std::free(ptr);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* devPtr, int value, std::size_t count) {
  std::memset(devPtr, value, count);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* devPtr, int value, std::size_t count, cudaStream_t stream) {
  stream->give([=] { std::memset(devPtr, value, count); });
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* dst, const void* src, std::size_t count, cudaMemcpyKind /*kind*/) {
  std::memcpy(dst, src, count);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = new CUstream_st(selected_device);
  const std::scoped_lock lock(streams_mutex);
  streams().insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::scoped_lock lock(streams_mutex);
    streams().erase(stream);
  }
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream->recorded != nullptr) {
    return cudaErrorStreamCaptureUnsupported;
  }
  return stream->is_done() ? cudaSuccess : cudaErrorNotReady;
}

// Of the first stream, by which the host's own copies go.
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status =
      stream->recorded != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  stream->recorded = new CUgraph_st();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->recorded, nullptr);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec,
                                 cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *exec = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t /*exec*/, cudaStream_t /*stream*/) {
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Work& work : exec->work) {
    stream->give(work);
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(
    void* dst, const void* src, std::size_t count, cudaMemcpyKind /*kind*/, cudaStream_t stream) {
  stream->give([=] { std::memcpy(dst, src, count); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new CUevent_st();
  return cudaSuccess;
}

// After what waits for it.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  cudaEventSynchronize(event);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  std::size_t number = 0;
  {
    const std::scoped_lock lock(event->mutex);
    number = ++event->recorded;
  }
  stream->give([event, number] {
    const std::scoped_lock lock(event->mutex);
    event->done = number;
    event->changed.notify_all();
  });
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::unique_lock lock(event->mutex);
  const std::size_t number = event->recorded;
  event->changed.wait(lock, [&] { return event->done >= number; });
  return cudaSuccess;
}

}  // extern "C"

// NOLINTEND(readability-identifier-naming, google-runtime-int)
