#pragma once

#include <string>

namespace tessera::cuda {

// "580.95.05", as NVIDIA's management library has it; empty where there is none.
std::string driver_release();

}  // namespace tessera::cuda
