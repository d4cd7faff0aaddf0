#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tessera::cuda {

struct StandInDevice {
  std::string name = "a device";
  int major = 9;
  int minor = 0;
  std::size_t total_bytes = 0;
  std::size_t free_bytes = 0;
  int error = 0;               // the cudaError_t that what uses it fails with
  bool reaches_others = true;  // their memory, and they its
};

// What the runtime finds that stands for CUDA's (stand_in_runtime.h). The id of a device is its
// number, and zeros.
struct StandInMachine {
  int driver_version = 13000;  // 13.0, as CUDA writes it; 0: no driver
  std::vector<StandInDevice> devices = std::vector<StandInDevice>(4);
  // The cudaError_t that cudaGetDeviceCount() fails with; 0, success: what follows from the rest.
  int count_error = 0;
};

// The one of this process, for tests to change while no other thread uses the runtime.
StandInMachine& stand_in_machine();

}  // namespace tessera::cuda
