#pragma once

#include <memory>

#include "tessera/backend/backend.h"

namespace tessera {

// The CPU backend with `threads` threads in the calling thread's OpenMP team.
std::unique_ptr<Backend> make_cpu_backend(int threads);

}  // namespace tessera
