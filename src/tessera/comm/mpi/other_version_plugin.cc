// For tests: a plugin of an older version.

#include "tessera/comm/mpi/mpi_plugin.h"

extern "C" const tessera::MpiPlugin* tessera_mpi_plugin() {
  static constexpr tessera::MpiPlugin kPlugin = {.abi = tessera::kMpiPluginAbi, .version = "0.0.1"};
  return &kPlugin;
}
