#pragma once

#include "tessera/backend/devices.h"

namespace tessera::cuda {

// What the driver sees, what of it this build has kernels for, and what is missing. Never throws
// for a machine without a device.
void find_devices(Devices& devices);

// How many devices this build can use. To ask, as below, may leave another device selected.
std::int64_t num_usable_devices();

// The driver's number of usable device `number`. Errors: kInvalidConfig where there is none.
int ordinal_of(std::int64_t number);

}  // namespace tessera::cuda
