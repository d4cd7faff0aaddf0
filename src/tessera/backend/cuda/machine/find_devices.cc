#include "tessera/backend/cuda/machine/find_devices.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "tessera/backend/cuda/cudnn/cudnn.h"
#include "tessera/backend/cuda/device/check.h"
#include "tessera/backend/cuda/machine/nvml.h"
#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

// The one architecture that the kernels are compiled for, as in sm_90.
constexpr int kArchitecture = TESSERA_CUDA_ARCHITECTURE;
constexpr const char* kOldestDriver = "580";  // that runs CUDA 13

// CUDA writes 13.0 as 13000.
std::string version_text(int version) {
  return format("{}.{}", version / 1000, version % 1000 / 10);
}

// "580.95.05 (CUDA 13.0)", what the driver is and what it knows.
std::string driver_text(int version) {
  if (version == 0) {
    return "none";
  }
  const std::string release = driver_release();
  const std::string cuda = format("CUDA {}", version_text(version));
  return release.empty() ? cuda : format("{} ({})", release, cuda);
}

int driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

// Machine code runs on its own architecture and on later ones of the same generation.
bool is_supported(const cudaDeviceProp& device) {
  return device.major == kArchitecture / 10 && device.minor >= kArchitecture % 10;
}

// Why the driver has no device to offer, and what to do.
std::string driver_problem(int driver, cudaError_t error) {
  if (driver == 0) {
    return format(
        "this machine has no NVIDIA driver (libcuda.so.1): install version {} or newer for its GPU "
        "(Debian package nvidia-driver, or nvidia.com/drivers)",
        kOldestDriver);
  }
  if (driver < CUDART_VERSION / 1000 * 1000) {
    return format(
        "the NVIDIA driver knows CUDA {}, this build needs {}: install driver {} or newer",
        version_text(driver),
        version_text(CUDART_VERSION),
        kOldestDriver);
  }
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (error == cudaErrorNoDevice && visible != nullptr) {
    return format("the driver shows no GPU: CUDA_VISIBLE_DEVICES = \"{}\" hides them", visible);
  }
  if (error == cudaErrorNoDevice) {
    return "the driver sees no GPU: check nvidia-smi, and that the container or job was given one";
  }
  return format("the driver cannot be used: {} ({}): check nvidia-smi",
                cudaGetErrorName(error),
                cudaGetErrorString(error));
}

cudaDeviceProp properties_of(int ordinal) {
  cudaDeviceProp device = {};
  check(cudaGetDeviceProperties(&device, ordinal), "cudaGetDeviceProperties()");
  return device;
}

int device_count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  return error == cudaSuccess ? count : 0;
}

// To ask CUDA makes a context, hundreds of MB on every GPU, so that it is what is asked last. One
// that is full has no room for that. Errors: kDeviceError where it cannot be used.
std::int64_t free_bytes_of(int ordinal, const cudaDeviceProp& properties) {
  const auto total = static_cast<std::int64_t>(properties.totalGlobalMem);
  const std::optional<GpuMemory> whole = gpu_memory(properties.uuid);
  // CUDA leaves some of a GPU out; of a slice of one (MIG) it tells far less.
  if (whole && whole->total_bytes / 10 * 9 <= total) {
    return std::min(whole->free_bytes, total);
  }
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  try {
    check(cudaSetDevice(ordinal), "cudaSetDevice()");
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo()");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) {
      throw;
    }
    return 0;
  }
  return static_cast<std::int64_t>(free_bytes);
}

// A device that runs can use; else why they cannot, and what to do.
std::variant<Device, std::string> look_at(int ordinal) {
  const cudaDeviceProp properties = properties_of(ordinal);
  const std::string gpu = format("GPU {}, {},", ordinal, properties.name);
  if (!is_supported(properties)) {
    return format(
        "{0} is sm_{1}{2}, and this build has kernels for sm_{3}: configure with "
        "-DTESSERA_CUDA_ARCHITECTURE={1}{2} and build again",
        gpu,
        properties.major,
        properties.minor,
        kArchitecture);
  }
  try {
    return Device{.name = properties.name,
                  .architecture = format("sm_{}{}", properties.major, properties.minor),
                  .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
                  .free_bytes = free_bytes_of(ordinal, properties)};
  } catch (const Error& error) {
    return format("{} cannot be used: {}", gpu, error.what());
  }
}

// As find_devices() numbers them.
std::vector<int> usable_ordinals() {
  std::vector<int> usable;
  for (int ordinal = 0; ordinal < device_count(); ++ordinal) {
    if (std::holds_alternative<Device>(look_at(ordinal))) {
      usable.push_back(ordinal);
    }
  }
  return usable;
}

}  // namespace

void find_devices(Devices& devices) {
  const int driver = driver_version();
  const auto cublas = static_cast<int>(cublasLtGetVersion());
  const std::string cudnn = cudnn_version();
  devices.versions = format("driver: {}; CUDA runtime {}, cuBLASLt {}.{}.{}, cuDNN {}",
                            driver_text(driver),
                            version_text(CUDART_VERSION),
                            cublas / 10000,
                            cublas / 100 % 100,
                            cublas % 100,
                            cudnn.empty() ? "none" : cudnn);
  std::string problem;
  if (find_cudnn(problem) == nullptr) {
    devices.missing.emplace_back(
        cudnn.empty()
            ? "no cuDNN 9 (libcudnn.so.9): install it (developer.nvidia.com/cudnn), or name its "
              "folder in LD_LIBRARY_PATH"
            : problem +
                  ", and attention does without: install a newer one "
                  "(developer.nvidia.com/cudnn)");
  }
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (error != cudaSuccess || count == 0) {
    devices.problem = driver_problem(driver, error == cudaSuccess ? cudaErrorNoDevice : error);
    return;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    std::variant<Device, std::string> found = look_at(ordinal);
    if (Device* const device = std::get_if<Device>(&found)) {
      devices.usable.push_back(std::move(*device));
    } else {
      devices.unusable.push_back(std::move(std::get<std::string>(found)));
    }
  }
  if (devices.usable.empty()) {
    devices.problem = devices.unusable[0];
  }
}

std::int64_t num_usable_devices() {
  return static_cast<std::int64_t>(usable_ordinals().size());
}

int ordinal_of(std::int64_t number) {
  const std::vector<int> usable = usable_ordinals();
  TESSERA_REQUIRE(number >= 0 && number < static_cast<std::int64_t>(usable.size()),
                  ErrorCode::kInvalidConfig,
                  "CUDA device {} of {} that this build can use: tessera doctor shows them",
                  number,
                  usable.size());
  return usable[static_cast<std::size_t>(number)];
}

}  // namespace tessera::cuda
