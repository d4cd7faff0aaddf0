#pragma once

#include <source_location>
#include <string_view>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace tessera::cuda {

// Throws unless `result` is success, with the call, CUDA's name and text of the error, the place in
// our code, and what to do. kOutOfMemory where the device has no memory left, else kDeviceError.
void check(cudaError_t result,
           std::string_view call,
           std::source_location place = std::source_location::current());

void check(cublasStatus_t result,
           std::string_view call,
           std::source_location place = std::source_location::current());

// Behind a call of a library that failed: throws where it is the device that did, which CUDA then
// tells every call.
void check_device(std::string_view call,
                  std::source_location place = std::source_location::current());

// A handle of a C library that is destroyed with its owner.
template <class T, auto kDestroy>
class Handle {
 public:
  explicit Handle(T handle) : handle_(handle) {}

  ~Handle() {
    if (handle_ != nullptr) {
      kDestroy(handle_);
    }
  }

  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  T get() const { return handle_; }

 private:
  T handle_;
};

}  // namespace tessera::cuda
