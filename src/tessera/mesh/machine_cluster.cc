#include "tessera/mesh/machine_cluster.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <hwloc.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};

using Topology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyTopology>;

Topology load_topology() {
  hwloc_topology_t raw = nullptr;
  bool loaded = hwloc_topology_init(&raw) == 0;
  Topology topology(loaded ? raw : nullptr);
  loaded = loaded && hwloc_topology_load(raw) == 0;
  TESSERA_REQUIRE(loaded,
                  ErrorCode::kDeviceError,
                  "hwloc cannot look at this machine: {}; name a cluster file in cluster.file",
                  std::strerror(errno));
  return topology;
}

std::int64_t count(const Topology& topology, hwloc_obj_type_t type) {
  return hwloc_get_nbobjs_by_type(topology.get(), type);
}

// What makes up a level.
struct Part {
  hwloc_obj_type_t type;
  std::string_view name;
};

constexpr std::array<Part, 3> kParts = {
    {{HWLOC_OBJ_L3CACHE, "cache"}, {HWLOC_OBJ_NUMANODE, "numa"}, {HWLOC_OBJ_PACKAGE, "package"}}};

}  // namespace

std::int64_t machine_cache_bytes() {
  const Topology topology = load_topology();
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE}) {
    std::int64_t bytes = 0;
    for (hwloc_obj_t cache = nullptr;
         (cache = hwloc_get_next_obj_by_type(topology.get(), type, cache)) != nullptr;) {
      bytes += static_cast<std::int64_t>(cache->attr->cache.size);
    }
    if (bytes > 0) {
      return bytes;
    }
  }
  return 0;
}

Cluster machine_cluster() {
  const Topology topology = load_topology();
  const hwloc_obj_t root = hwloc_get_root_obj(topology.get());
  // A machine that hides its cores shows processing units.
  const std::int64_t cores = count(topology, HWLOC_OBJ_CORE);
  const std::int64_t devices = cores > 0 ? cores : count(topology, HWLOC_OBJ_PU);
  TESSERA_REQUIRE(devices > 0, ErrorCode::kDeviceError, "hwloc sees no core on this machine");
  Cluster cluster{
      .name = "local",
      .device = {.name = "core",
                 .memory_bytes = static_cast<std::int64_t>(root->total_memory) / devices},
      .levels = {}};
  // Some machines have several packages in a NUMA node, others several nodes in a package.
  std::vector<std::pair<std::int64_t, std::string_view>> rings;
  for (const Part& part : kParts) {
    rings.emplace_back(count(topology, part.type), part.name);
  }
  std::ranges::stable_sort(rings, std::greater<>(), [](const auto& ring) { return ring.first; });
  std::int64_t groups = devices;
  for (const auto& [parts, name] : rings) {
    if (root->symmetric_subtree != 0 && parts > 0 && groups % parts == 0 && groups > parts) {
      cluster.levels.push_back({.name = std::string(name), .size = groups / parts});
      groups = parts;
    }
  }
  if (groups > 1 || cluster.levels.empty()) {
    cluster.levels.push_back({.name = "machine", .size = groups});
  }
  return cluster;
}

}  // namespace tessera
