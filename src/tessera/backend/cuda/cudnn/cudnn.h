#pragma once

// cuDNN's graph API, loaded when it is first needed: a machine without it loses nothing else.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <cudnn_graph.h>

namespace tessera::cuda {

// The functions of libcudnn.so.9 that we use.
struct Cudnn {
  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnGetErrorString) error_string = nullptr;
  decltype(&cudnnGetLastErrorString) last_error = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
};

// The oldest whose engines are known to compute our graphs: what we ask was never put to older
// ones, of which NVIDIA's own frontend works around several, or refuses them.
inline constexpr std::size_t kOldestCudnn = 91900;

// Null where the machine has no cuDNN 9, or an older one; `problem` then says so. It stays loaded.
const Cudnn* find_cudnn(std::string& problem);

// "9.19.0", whatever its age; empty where there is none.
std::string cudnn_version();

// What a status means, with what cuDNN last said about it.
std::string text_of(const Cudnn& cudnn, cudnnStatus_t status);

// Errors: kDeviceError naming the call.
void check(const Cudnn& cudnn, cudnnStatus_t status, const char* call);

// A descriptor of cuDNN's, destroyed with its last copy. Errors: kDeviceError, with cuDNN's text.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const Cudnn& cudnn, cudnnBackendDescriptorType_t type);

  cudnnBackendDescriptor_t get() const { return descriptor_.get(); }

  void set(cudnnBackendAttributeName_t name,
           cudnnBackendAttributeType_t type,
           std::int64_t count,
           const void* values);
  void set(cudnnBackendAttributeName_t name, std::int64_t value);
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value);

  std::int64_t number(cudnnBackendAttributeName_t name) const;

  void finalize();

  // What is wrong with it; empty where it may be used.
  std::string try_finalize();

 private:
  const Cudnn* cudnn_;
  std::shared_ptr<void> descriptor_;
};

}  // namespace tessera::cuda
