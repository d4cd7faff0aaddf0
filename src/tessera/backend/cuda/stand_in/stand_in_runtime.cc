#include "tessera/backend/cuda/stand_in/stand_in_runtime.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "tessera/backend/cuda/stand_in/stand_in_machine.h"

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
    NamedError{cudaErrorStreamCaptureInvalidated,
               "cudaErrorStreamCaptureInvalidated",
               "operation failed due to a previous error during capture"},
    NamedError{cudaErrorStreamCaptureUnjoined,
               "cudaErrorStreamCaptureUnjoined",
               "capturing stream has unjoined work"},
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

// Done one after the other, in the order in which it was recorded.
struct CUgraph_st {
  std::vector<Work> work;
};

struct CUgraphExec_st {
  std::vector<Work> work;
};

// What a stream had been given when it was last recorded.
struct CUevent_st {
  // What streams have of it outlives it.
  struct State {
    std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    std::size_t recorded = 0;         // how often
    std::set<std::size_t> under_way;  // those that streams have yet to come to

    bool is_done(std::size_t number) const { return !under_way.contains(number); }
  };

  std::shared_ptr<StandInCapture> capture;  // to which it was recorded; null: to none
  std::vector<std::size_t> behind;          // of it
  std::shared_ptr<State> state = std::make_shared<State>();
};

CUstream_st::CUstream_st(int device_of_it)
    : device(device_of_it), thread_([this](const std::stop_token& stop) { loop(stop); }) {}

CUstream_st::~CUstream_st() {
  wait();
  thread_.request_stop();
  changed_.notify_all();
}

void CUstream_st::give(Work work) {
  if (capture != nullptr) {
    capture->nodes.push_back({.work = std::move(work), .behind = last});
    last = {capture->nodes.size() - 1};
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

namespace {

// Of this thread: what it began, and no call may disturb that the device might have to wait for.
thread_local std::shared_ptr<StandInCapture> own_capture;  // NOLINT: CUDA's state of a thread

cudaError_t fail_with(cudaError_t error) {
  last_error = error;
  return error;
}

// Of a call that is not allowed while this thread captures, or of a stream that is captured.
bool breaks_capture(cudaStream_t stream = nullptr) {
  const auto capture =
      stream != nullptr && stream->capture != nullptr ? stream->capture : own_capture;
  if (capture == nullptr) {
    return false;
  }
  capture->is_broken = true;
  return true;
}

// Whether all of them are done before what follows `last`.
bool is_behind(const StandInCapture& capture,
               const std::vector<std::size_t>& last,
               const std::vector<std::size_t>& all) {
  std::vector<bool> reached(capture.nodes.size(), false);
  std::vector<std::size_t> left = last;
  while (!left.empty()) {
    const std::size_t node = left.back();
    left.pop_back();
    if (!reached[node]) {
      reached[node] = true;
      const std::vector<std::size_t>& behind = capture.nodes[node].behind;
      left.insert(left.end(), behind.begin(), behind.end());
    }
  }
  return std::ranges::all_of(all, [&](std::size_t node) { return reached[node]; });
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

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int /*device*/) {
  *value = attr == cudaDevAttrMultiProcessorCount ? 2 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  *leastPriority = 0;
  *greatestPriority = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* canAccessPeer, int device, int peerDevice) {
  *canAccessPeer = device_at(device).reaches_others && device_at(peerDevice).reaches_others ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int /*peerDevice*/, unsigned /*flags*/) {
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** devPtr, std::size_t size) {
  if (breaks_capture()) {
    return fail_with(cudaErrorStreamCaptureUnsupported);
  }
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

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
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
  if (breaks_capture(stream)) {
    return fail_with(cudaErrorStreamCaptureUnsupported);
  }
  return stream->is_done() ? cudaSuccess : cudaErrorNotReady;
}

// By none the host's own copies go, which are done at once.
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == nullptr) {
    return cudaSuccess;
  }
  if (breaks_capture(stream)) {
    return fail_with(cudaErrorStreamCaptureUnsupported);
  }
  stream->wait();
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status =
      stream->capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  if (stream->capture != nullptr || own_capture != nullptr) {
    return fail_with(cudaErrorIllegalState);
  }
  own_capture = std::make_shared<StandInCapture>();
  own_capture->first = stream;
  own_capture->streams = {stream};
  stream->capture = own_capture;
  stream->last.clear();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<StandInCapture> capture = std::exchange(own_capture, nullptr);
  if (capture == nullptr || capture->first != stream) {
    return fail_with(cudaErrorIllegalState);
  }
  capture->has_ended = true;
  bool is_joined = true;
  for (cudaStream_t each : capture->streams) {
    is_joined = is_joined && is_behind(*capture, stream->last, each->last);
    each->capture = nullptr;
  }
  if (capture->is_broken) {
    return fail_with(cudaErrorStreamCaptureInvalidated);
  }
  if (!is_joined) {
    return fail_with(cudaErrorStreamCaptureUnjoined);
  }
  *graph = new CUgraph_st();
  for (const StandInCapture::Node& node : capture->nodes) {
    (*graph)->work.push_back(node.work);
  }
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  if (event->capture == nullptr) {
    if (stream->capture != nullptr) {
      stream->capture->is_broken = true;
      return fail_with(cudaErrorStreamCaptureIsolation);
    }
    const std::scoped_lock lock(event->state->mutex);
    stream->give([state = event->state, number = event->state->recorded] {
      std::unique_lock waiting(state->mutex);
      state->changed.wait(waiting, [&] { return state->is_done(number); });
    });
    return cudaSuccess;
  }
  if (event->capture->has_ended) {
    return fail_with(cudaErrorCapturedEvent);
  }
  if (stream->capture == nullptr) {
    stream->capture = event->capture;
    stream->capture->streams.push_back(stream);
    stream->last.clear();
  } else if (stream->capture != event->capture) {
    return fail_with(cudaErrorStreamCaptureMerge);
  }
  stream->last.insert(stream->last.end(), event->behind.begin(), event->behind.end());
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

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->capture = stream->capture;
  if (event->capture != nullptr) {
    event->behind = stream->last;
    return cudaSuccess;
  }
  const std::scoped_lock lock(event->state->mutex);
  event->state->under_way.insert(++event->state->recorded);
  stream->give([state = event->state, number = event->state->recorded] {
    const std::scoped_lock done(state->mutex);
    state->under_way.erase(number);
    state->changed.notify_all();
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (breaks_capture()) {
    return fail_with(cudaErrorStreamCaptureUnsupported);
  }
  if (event->capture != nullptr) {
    return fail_with(cudaErrorCapturedEvent);
  }
  const std::scoped_lock lock(event->state->mutex);
  return event->state->is_done(event->state->recorded) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (breaks_capture()) {
    return fail_with(cudaErrorStreamCaptureUnsupported);
  }
  CUevent_st::State& state = *event->state;
  std::unique_lock lock(state.mutex);
  const std::size_t number = state.recorded;
  state.changed.wait(lock, [&] { return state.is_done(number); });
  return cudaSuccess;
}

}  // extern "C"

// NOLINTEND(readability-identifier-naming, google-runtime-int)
