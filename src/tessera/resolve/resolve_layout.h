#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/mesh/cluster.h"
#include "tessera/plan/run_layout.h"

namespace tessera {

// What [parallel], [state] and [cluster] say, worked out.
struct ResolvedLayout {
  RunLayout layout = {};
  DeviceSpec device = {};               // of cluster.file; all unknown where none is named
  double disk_bandwidth = 0.0;          // likewise; 0: not known
  std::vector<Level> levels = {};       // likewise; empty
  std::vector<std::string> notes = {};  // about the placement, for people
};

// Degrees that the config leaves out are 1: resolve_run() fills them in. Errors: kInvalidConfig
// naming the key, with the numbers and what would work.
ResolvedLayout resolve_layout(const RunConfig& config);

// Bytes/s that each device has on a level where all of them send: a shared link is divided among
// the devices of the groups that have one. 0: not known.
double bandwidth_of(const std::vector<Level>& levels, std::string_view name);

}  // namespace tessera
