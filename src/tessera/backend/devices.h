#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backend/device_backend.h"

namespace tessera {

// What a run can compute on beside the CPU.
struct Device {
  std::string name;          // as its maker calls it
  std::string architecture;  // "sm_90"
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;
};

struct Devices {
  std::vector<Device> usable = {};  // their place is their number
  std::string versions = {};        // of driver and libraries; empty where there is no plugin
  std::vector<std::string> unusable =
      {};                                 // a sentence for each device that no run can use, and why
  std::vector<std::string> missing = {};  // one for each library that is not there
  std::string problem = {};               // why none is usable, and what to do; empty where one is
};

// Looks at this machine's GPUs through the plugin libtessera_cuda.so. A machine without is no
// error. Errors: kInvalidConfig where the plugin is of another version.
Devices find_devices();

// What ranks that compute side by side have of each other: threads of one process their memory,
// where each device in use reads and writes that of the others; processes nothing.
enum class Shared { kMemory, kNothing };

// What a run chooses about a device.
struct DeviceOptions {
  Shared shared = Shared::kMemory;
  bool may_record = true;  // Backend::record(); else each kernel is begun by itself
  bool tf32 = false;       // products of f32 round their factors to tf32, 10 bits behind the first
  bool library_attention = true;  // where a library knows how; else by our own kernels alone
  // Where the fastest algorithms of matrix products are kept
  // (backend/cuda/products/algorithm_cache.h), the file that decides first. None: nothing is timed,
  // and the first that is proposed is taken, unless choices are shared.
  std::vector<std::filesystem::path> algorithm_files = {};
  // What the files do not know is timed for all ranks (DeviceBackend::product_choices).
  bool shares_choices = false;
};

// A backend for the calling thread, that of rank `rank` of `num_ranks` on this machine: on usable
// device `rank` modulo their number, so that ranks share devices where there are fewer. Errors:
// kInvalidConfig where there is none; kUnsupported where devices do not reach what they share;
// kDeviceError.
std::unique_ptr<DeviceBackend> make_device_backend(std::int64_t rank,
                                                   std::int64_t num_ranks,
                                                   const DeviceOptions& options = {});

}  // namespace tessera
