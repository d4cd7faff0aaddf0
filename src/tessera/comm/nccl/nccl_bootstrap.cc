#include "tessera/comm/nccl/nccl_bootstrap.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {

std::vector<DeviceUuid> introduce_devices(Communicator& host,
                                          std::span<const std::int64_t> members,
                                          const DeviceUuid& own) {
  std::vector<DeviceUuid> devices(members.size());
  host.all_gather(own, std::as_writable_bytes(std::span(devices)), own.size());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto first = std::ranges::find(devices, devices[i]);
    const auto other = static_cast<std::size_t>(first - devices.begin());
    TESSERA_REQUIRE(other == i,
                    ErrorCode::kInvalidConfig,
                    "ranks {} and {} are on one GPU, where NCCL allows one rank: start at most as "
                    "many ranks on a machine as it has GPUs (tessera doctor shows them)",
                    members[other],
                    members[i]);
  }
  return devices;
}

NcclId share_id(Communicator& host, const std::function<NcclId()>& make) {
  NcclId id = {};
  std::span<const std::byte> part;
  if (host.rank() == 0) {
    id = make();
    part = id;
  }
  // The first member's part is all there is; those of the others are empty.
  host.all_gather(part, id, id.size());
  return id;
}

}  // namespace tessera
