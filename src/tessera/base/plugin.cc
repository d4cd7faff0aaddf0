#include "tessera/base/plugin.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include <dlfcn.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// How what a plugin hands out begins, in every version.
struct PluginHead {
  int interface;
  const char* version;
};

const void* checked(const std::string& path, void* handle, const char* entry, int interface) {
  auto* const function = reinterpret_cast<const PluginHead* (*)()>(::dlsym(handle, entry));
  TESSERA_REQUIRE(function != nullptr,
                  ErrorCode::kInvalidConfig,
                  "{} has no function {}: it is no plugin of Tessera",
                  path,
                  entry);
  const PluginHead* const head = function();
  TESSERA_REQUIRE(
      head->interface == interface && head->version == std::string_view(TESSERA_VERSION),
      ErrorCode::kInvalidConfig,
      "{} is of Tessera {} (interface {}), the program of {} (interface {}): install both from one "
      "build",
      path,
      head->version,
      head->interface,
      TESSERA_VERSION,
      interface);
  return head;
}

}  // namespace

std::vector<std::string> plugin_places(const std::string& file) {
  std::vector<std::string> places;
  Dl_info self;
  if (::dladdr(reinterpret_cast<const void*>(&plugin_places), &self) != 0) {
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

const void* load_plugin(std::span<const std::string> places,
                        const char* entry,
                        int interface,
                        std::string& tried) {
  for (const std::string& path : places) {
    // Never unloaded: what plugins wrap can be started once in a process.
    if (void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return checked(path, handle, entry, interface);
    }
    tried += format("\n  {}", ::dlerror());
  }
  return nullptr;
}

}  // namespace tessera
