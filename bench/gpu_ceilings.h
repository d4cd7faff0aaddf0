#pragma once

#include <cstdint>

namespace tessera {

// What the first GPU can do at best, by NVIDIA's own means.
struct Ceilings {
  double product_flop_per_s = 0;  // 8192 x 8192 x 8192 in bf16, sums in f32
  double copy_bytes_per_s = 0;    // within its memory, read and written bytes both counted
};

// Errors: kDeviceError.
Ceilings measure_ceilings();

// Of its memory. Errors: kDeviceError.
std::int64_t device_bytes();

// Bytes of its memory that are in use, by whom ever, as this process's context sees it, which the
// first call makes. Errors: kDeviceError.
std::int64_t used_device_bytes();

}  // namespace tessera
