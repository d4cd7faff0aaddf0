#pragma once

#include "tessera/mesh/cluster.h"

namespace tessera {

// This machine as hwloc sees it, a device a core that the process may use: levels "cache" (cores
// that share a last-level cache), "numa", "package" and "machine", as far as they have several
// parts. A machine whose parts are not alike is one level, "machine". Bandwidths are not known.
// Errors: kDeviceError where the machine cannot be looked at.
Cluster machine_cluster();

// Bytes of this machine's last caches together, as hwloc sees them; 0 where it sees none. Errors:
// those of machine_cluster().
std::int64_t machine_cache_bytes();

}  // namespace tessera
