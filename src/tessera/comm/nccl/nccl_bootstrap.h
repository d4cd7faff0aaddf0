#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

// What tells a GPU from every other, on all machines.
using DeviceUuid = std::array<std::byte, 16>;

// The number that NCCL gives to a group, equal on all members.
using NcclId = std::array<std::byte, 128>;

// The devices of a group's members, in their order. Errors: kInvalidConfig on every rank where two
// of them have one device, which NCCL does not allow, naming the ranks; those of an operation.
std::vector<DeviceUuid> introduce_devices(Communicator& host,
                                          std::span<const std::int64_t> members,
                                          const DeviceUuid& own);

// The number that the first member makes; the others wait for it. Errors: those of an operation.
NcclId share_id(Communicator& host, const std::function<NcclId()>& make);

}  // namespace tessera
