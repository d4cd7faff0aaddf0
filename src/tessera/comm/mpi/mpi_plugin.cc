#include "tessera/comm/mpi/mpi_plugin.h"

#include "tessera/base/error.h"
#include "tessera/base/plugin.h"

namespace tessera {
namespace {

const char* plugin_file(MpiLibrary library) {
  return library == MpiLibrary::kOpenMpi ? "libtessera_openmpi.so" : "libtessera_mpich.so";
}

const char* package(MpiLibrary library) {
  return library == MpiLibrary::kOpenMpi ? "libopenmpi-dev" : "libmpich-dev";
}

}  // namespace

std::vector<std::string> mpi_plugin_places(MpiLibrary library) {
  return plugin_places(plugin_file(library));
}

const MpiPlugin& load_mpi_plugin(MpiLibrary library, std::span<const std::string> places) {
  std::string tried;
  const void* const found = load_plugin(places, kMpiPluginEntry, kMpiPluginAbi, tried);
  TESSERA_REQUIRE(
      found != nullptr,
      ErrorCode::kInvalidConfig,
      "the run was started by {}, whose plugin {} cannot be loaded:{}\nInstall the Debian package "
      "{} and build Tessera again, or set TESSERA_MPI=none for runs of one process each",
      name(library),
      plugin_file(library),
      tried,
      package(library));
  const auto& plugin = *static_cast<const MpiPlugin*>(found);
  TESSERA_REQUIRE(plugin.library == library,
                  ErrorCode::kInvalidConfig,
                  "{} is the plugin of {}, not of {}",
                  plugin_file(library),
                  name(plugin.library),
                  name(library));
  return plugin;
}

}  // namespace tessera
