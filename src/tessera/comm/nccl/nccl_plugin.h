#pragma once

#include <span>
#include <string>

#include "tessera/comm/nccl/nccl_world.h"

namespace tessera {

// Raised whenever what core and plugin share changes: this struct, and the classes that it names.
inline constexpr int kNcclPluginAbi = 5;

// What libtessera_nccl.so hands out by the one C function that it exports. The two numbers stand
// first in every version.
struct NcclPlugin {
  int abi = 0;
  const char* version = nullptr;                                          // of Tessera
  int (*library_version)() = nullptr;                                     // 22809 for 2.28.9
  NcclWorld* (*join)(World& host, const NcclOptions& options) = nullptr;  // the caller's
};

using NcclPluginEntry = const NcclPlugin*();
inline constexpr const char* kNcclPluginEntry = "tessera_nccl_plugin";

// The plugin from the first of `places` that can be loaded. Errors: kInvalidConfig naming what was
// tried with the system's reasons, and what to install; or versions that differ.
const NcclPlugin& load_nccl_plugin(std::span<const std::string> places);

}  // namespace tessera
