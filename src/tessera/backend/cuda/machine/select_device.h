#pragma once

#include <cstdint>

#include "tessera/backend/devices.h"

namespace tessera::cuda {

// Selects the device of one of several ranks for the calling thread, which with kMemory reaches
// those of the others, and returns its number. Errors: as make_device_backend().
int select_device_of(std::int64_t rank, std::int64_t num_ranks, Shared shared);

int multiprocessors_of(int ordinal);

}  // namespace tessera::cuda
