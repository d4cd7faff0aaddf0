#include "tessera/backend/cuda/cudnn/cudnn.h"

#include <array>
#include <cstddef>
#include <optional>

#include <dlfcn.h>

#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

std::optional<Cudnn> load() {
  void* const library = ::dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    return std::nullopt;
  }
  Cudnn found;
  const bool has_all = find(library, "cudnnGetVersion", found.version) &&
                       find(library, "cudnnGetErrorString", found.error_string) &&
                       find(library, "cudnnGetLastErrorString", found.last_error) &&
                       find(library, "cudnnCreate", found.create) &&
                       find(library, "cudnnDestroy", found.destroy) &&
                       find(library, "cudnnSetStream", found.set_stream) &&
                       find(library, "cudnnBackendCreateDescriptor", found.create_descriptor) &&
                       find(library, "cudnnBackendDestroyDescriptor", found.destroy_descriptor) &&
                       find(library, "cudnnBackendSetAttribute", found.set_attribute) &&
                       find(library, "cudnnBackendGetAttribute", found.get_attribute) &&
                       find(library, "cudnnBackendFinalize", found.finalize) &&
                       find(library, "cudnnBackendExecute", found.execute);
  if (!has_all) {
    ::dlclose(library);
    return std::nullopt;
  }
  return found;
}

const Cudnn* loaded_cudnn() {
  static const std::optional<Cudnn> kFound = load();
  return kFound ? &*kFound : nullptr;
}

std::string text_of_version(std::size_t number) {
  return format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

}  // namespace

const Cudnn* find_cudnn(std::string& problem) {
  const Cudnn* const found = loaded_cudnn();
  if (found == nullptr) {
    problem = "no cuDNN 9 (libcudnn.so.9): tessera doctor says how to get it";
    return nullptr;
  }
  if (found->version() < kOldestCudnn) {
    problem = format("cuDNN {} is older than {}", cudnn_version(), text_of_version(kOldestCudnn));
    return nullptr;
  }
  return found;
}

std::string cudnn_version() {
  const Cudnn* const cudnn = loaded_cudnn();
  return cudnn == nullptr ? std::string() : text_of_version(cudnn->version());
}

std::string text_of(const Cudnn& cudnn, cudnnStatus_t status) {
  std::array<char, 512> said = {};
  cudnn.last_error(said.data(), said.size());
  return format("{} ({})", cudnn.error_string(status), said.data());
}

void check(const Cudnn& cudnn, cudnnStatus_t status, const char* call) {
  TESSERA_REQUIRE(status == CUDNN_STATUS_SUCCESS,
                  ErrorCode::kDeviceError,
                  "{} of cuDNN {} failed with {}: look at nvidia-smi; if it comes again, report it "
                  "with the run file",
                  call,
                  cudnn_version(),
                  text_of(cudnn, status));
}

CudnnDescriptor::CudnnDescriptor(const Cudnn& cudnn, cudnnBackendDescriptorType_t type)
    : cudnn_(&cudnn) {
  cudnnBackendDescriptor_t made = nullptr;
  check(cudnn, cudnn.create_descriptor(type, &made), "cudnnBackendCreateDescriptor()");
  descriptor_ = std::shared_ptr<void>(
      made, [&cudnn](cudnnBackendDescriptor_t gone) { cudnn.destroy_descriptor(gone); });
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type,
                          std::int64_t count,
                          const void* values) {
  check(*cudnn_,
        cudnn_->set_attribute(get(), name, type, count, values),
        "cudnnBackendSetAttribute()");
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, std::int64_t value) {
  set(name, CUDNN_TYPE_INT64, 1, &value);
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
  const cudnnBackendDescriptor_t descriptor = value.get();
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, static_cast<const void*>(&descriptor));
}

std::int64_t CudnnDescriptor::number(cudnnBackendAttributeName_t name) const {
  std::int64_t value = 0;
  std::int64_t count = 0;
  check(*cudnn_,
        cudnn_->get_attribute(get(), name, CUDNN_TYPE_INT64, 1, &count, &value),
        "cudnnBackendGetAttribute()");
  return value;
}

void CudnnDescriptor::finalize() {
  check(*cudnn_, cudnn_->finalize(get()), "cudnnBackendFinalize()");
}

std::string CudnnDescriptor::try_finalize() {
  const cudnnStatus_t status = cudnn_->finalize(get());
  return status == CUDNN_STATUS_SUCCESS ? std::string() : text_of(*cudnn_, status);
}

}  // namespace tessera::cuda
