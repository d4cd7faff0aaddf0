#include "tessera/backend/cuda/machine/nvml.h"

#include <array>
#include <cstddef>
#include <iterator>

#include <dlfcn.h>

#include "tessera/base/format.h"

namespace tessera::cuda {
namespace {

constexpr int kSuccess = 0;  // NVML_SUCCESS

// As nvmlMemory_t of nvml.h, which is not part of every toolkit.
struct NvmlMemory {
  // NOLINTBEGIN(google-runtime-int): the library's type
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
  // NOLINTEND(google-runtime-int)
};

struct Nvml {
  int (*init)() = nullptr;
  int (*driver_version)(char* version, unsigned length) = nullptr;
  int (*device_by_uuid)(const char* uuid, void** device) = nullptr;
  int (*memory_info)(void* device, NvmlMemory* memory) = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

std::optional<Nvml> load() {
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    return std::nullopt;
  }
  Nvml found;
  const bool is_ready = find(library, "nvmlInit_v2", found.init) &&
                        find(library, "nvmlSystemGetDriverVersion", found.driver_version) &&
                        find(library, "nvmlDeviceGetHandleByUUID", found.device_by_uuid) &&
                        find(library, "nvmlDeviceGetMemoryInfo", found.memory_info) &&
                        found.init() == kSuccess;
  if (!is_ready) {
    ::dlclose(library);
    return std::nullopt;
  }
  return found;
}

const Nvml* loaded_nvml() {
  static const std::optional<Nvml> kFound = load();
  return kFound ? &*kFound : nullptr;
}

// "GPU-8a3f...", as the library writes ids.
std::string text_of(const cudaUUID_t& id) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < std::size(id.bytes); ++i) {
    const bool begins_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text += format("{}{:02x}",
                   begins_group ? "-" : "",
                   static_cast<unsigned>(static_cast<unsigned char>(id.bytes[i])));
  }
  return text;
}

}  // namespace

std::string driver_release() {
  std::array<char, 96> text = {};
  const Nvml* const nvml = loaded_nvml();
  const bool is_known =
      nvml != nullptr &&
      nvml->driver_version(text.data(), static_cast<unsigned>(text.size())) == kSuccess;
  return is_known ? text.data() : "";
}

std::optional<GpuMemory> gpu_memory(const cudaUUID_t& id) {
  const Nvml* const nvml = loaded_nvml();
  void* device = nullptr;
  NvmlMemory memory = {};
  if (nvml == nullptr || nvml->device_by_uuid(text_of(id).c_str(), &device) != kSuccess ||
      nvml->memory_info(device, &memory) != kSuccess) {
    return std::nullopt;
  }
  return GpuMemory{.total_bytes = static_cast<std::int64_t>(memory.total),
                   .free_bytes = static_cast<std::int64_t>(memory.free)};
}

}  // namespace tessera::cuda
