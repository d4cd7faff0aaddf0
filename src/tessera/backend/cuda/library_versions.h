#pragma once

#include <string>

namespace tessera::cuda {

// "580.95.05", as NVIDIA's management library has it; empty where there is none.
std::string driver_release();

// "9.19.0"; empty where no libcudnn.so.9 is found. It is not kept loaded.
std::string cudnn_version();

}  // namespace tessera::cuda
