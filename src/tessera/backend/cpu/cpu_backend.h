#pragma once

#include <memory>

#include "tessera/backend/backend.h"
#include "tessera/backend/cpu/context.h"

namespace tessera {

// The CPU backend with `threads` threads in the calling thread's OpenMP team. Collectives run on
// `communicator_of`; without it, along no axis.
std::unique_ptr<Backend> make_cpu_backend(int threads, CommunicatorOf communicator_of = nullptr);

}  // namespace tessera
