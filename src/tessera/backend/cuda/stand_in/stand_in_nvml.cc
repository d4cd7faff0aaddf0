// A libnvidia-ml.so.1 for tests: it knows two GPUs, of 143 GB each, whose ids begin with 0 and 1
// and are else zeros.

#include <cstdio>
#include <cstring>

namespace {

constexpr int kSuccess = 0;           // NVML_SUCCESS
constexpr int kNotFound = 6;          // NVML_ERROR_NOT_FOUND
constexpr int kInsufficientSize = 7;  // NVML_ERROR_INSUFFICIENT_SIZE

// What stands for a device.
const int kFound = 0;

}  // namespace

// The names and types are the library's.
// NOLINTBEGIN(readability-identifier-naming, google-runtime-int)
extern "C" {

struct nvmlMemory_t {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

int nvmlInit_v2() {
  return kSuccess;
}

int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  const int written = std::snprintf(version, length, "580.95.05");
  return written < static_cast<int>(length) ? kSuccess : kInsufficientSize;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strcmp(uuid, "GPU-00000000-0000-0000-0000-000000000000") != 0 &&
      std::strcmp(uuid, "GPU-01000000-0000-0000-0000-000000000000") != 0) {
    return kNotFound;
  }
  *device = const_cast<int*>(&kFound);
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo(void* /*device*/, nvmlMemory_t* memory) {
  *memory = {.total = 143'000'000'000, .free = 140'000'000'000, .used = 3'000'000'000};
  return kSuccess;
}
}
// NOLINTEND(readability-identifier-naming, google-runtime-int)
