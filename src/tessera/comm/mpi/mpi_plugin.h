#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/comm/mpi/mpi_launch.h"

namespace tessera {

// Raised whenever what core and plugin share changes: this struct, and the classes that it names.
inline constexpr int kMpiPluginAbi = 4;

// What the library of a plugin hands out by the one C function that it exports. The two numbers
// stand first in every version.
struct MpiPlugin {
  int abi = 0;
  const char* version = nullptr;  // of Tessera
  MpiLibrary library = MpiLibrary::kOpenMpi;
  World* (*join)(const MpiLaunch& launch, const WorldOptions& options) = nullptr;  // the caller's
};

using MpiPluginEntry = const MpiPlugin*();
inline constexpr const char* kMpiPluginEntry = "tessera_mpi_plugin";

// Paths of the library's plugin in the order in which they are tried; the last has no directory, so
// that the system looks for it.
std::vector<std::string> mpi_plugin_places(MpiLibrary library);

// The plugin from the first of `places` that can be loaded, which then stays loaded. Errors:
// kInvalidConfig naming the library, what was tried with the system's reasons, and the package; or
// versions that differ.
const MpiPlugin& load_mpi_plugin(MpiLibrary library, std::span<const std::string> places);

}  // namespace tessera
