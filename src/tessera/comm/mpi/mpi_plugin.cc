#include "tessera/comm/mpi/mpi_plugin.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include <dlfcn.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const char* plugin_file(MpiLibrary library) {
  return library == MpiLibrary::kOpenMpi ? "libtessera_openmpi.so" : "libtessera_mpich.so";
}

const char* package(MpiLibrary library) {
  return library == MpiLibrary::kOpenMpi ? "libopenmpi-dev" : "libmpich-dev";
}

const MpiPlugin& checked(MpiLibrary library, const std::string& path, void* handle) {
  auto* const entry = reinterpret_cast<MpiPluginEntry*>(::dlsym(handle, kMpiPluginEntry));
  TESSERA_REQUIRE(entry != nullptr,
                  ErrorCode::kInvalidConfig,
                  "{} has no function {}: it is no plugin of Tessera",
                  path,
                  kMpiPluginEntry);
  const MpiPlugin& plugin = *entry();
  TESSERA_REQUIRE(
      plugin.abi == kMpiPluginAbi && plugin.version == std::string_view(TESSERA_VERSION),
      ErrorCode::kInvalidConfig,
      "{} is of Tessera {} (interface {}), the program of {} (interface {}): install "
      "both from one build",
      path,
      plugin.version,
      plugin.abi,
      TESSERA_VERSION,
      kMpiPluginAbi);
  TESSERA_REQUIRE(plugin.library == library,
                  ErrorCode::kInvalidConfig,
                  "{} is the plugin of {}, not of {}",
                  path,
                  name(plugin.library),
                  name(library));
  return plugin;
}

}  // namespace

std::vector<std::string> mpi_plugin_places(MpiLibrary library) {
  const std::string file = plugin_file(library);
  std::vector<std::string> places;
  Dl_info self;
  if (::dladdr(reinterpret_cast<const void*>(&load_mpi_plugin), &self) != 0) {
    places.push_back(fs::absolute(self.dli_fname).parent_path() / file);
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error && (places.empty() || places[0] != program.parent_path() / file)) {
    places.push_back(program.parent_path() / file);
  }
  places.push_back(file);
  return places;
}

const MpiPlugin& load_mpi_plugin(MpiLibrary library, std::span<const std::string> places) {
  std::string tried;
  for (const std::string& path : places) {
    // Never unloaded: MPI can be started once in a process.
    if (void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return checked(library, path, handle);
    }
    tried += format("\n  {}", ::dlerror());
  }
  fail(ErrorCode::kInvalidConfig,
       "the run was started by {}, whose plugin {} cannot be loaded:{}\nInstall the Debian package "
       "{} and build Tessera again, or set TESSERA_MPI=none for runs of one process each",
       name(library),
       plugin_file(library),
       tried,
       package(library));
}

}  // namespace tessera
