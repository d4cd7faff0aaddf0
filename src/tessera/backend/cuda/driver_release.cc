#include "tessera/backend/cuda/driver_release.h"

#include <array>

#include <dlfcn.h>

namespace tessera::cuda {
namespace {

// A library that is there for as long as this object is; functions are looked for by name.
class Library {
 public:
  explicit Library(const char* file) : handle_(::dlopen(file, RTLD_LAZY | RTLD_LOCAL)) {}

  ~Library() {
    if (handle_ != nullptr) {
      ::dlclose(handle_);
    }
  }

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <class Function>
  Function* find(const char* name) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

 private:
  void* handle_;
};

}  // namespace

std::string driver_release() {
  const Library nvml("libnvidia-ml.so.1");
  auto* const init = nvml.find<int()>("nvmlInit_v2");
  auto* const version = nvml.find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
  auto* const shutdown = nvml.find<int()>("nvmlShutdown");
  if (init == nullptr || version == nullptr || shutdown == nullptr || init() != 0) {
    return {};
  }
  std::array<char, 96> text = {};
  const bool known = version(text.data(), static_cast<unsigned>(text.size())) == 0;
  shutdown();
  return known ? text.data() : "";
}

}  // namespace tessera::cuda
