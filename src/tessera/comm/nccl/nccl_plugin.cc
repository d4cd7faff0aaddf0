#include "tessera/comm/nccl/nccl_plugin.h"

#include "tessera/base/error.h"
#include "tessera/base/plugin.h"

namespace tessera {
namespace {

constexpr const char* kFile = "libtessera_nccl.so";

}  // namespace

const NcclPlugin& load_nccl_plugin(std::span<const std::string> places) {
  std::string tried;
  const void* const found = load_plugin(places, kNcclPluginEntry, kNcclPluginAbi, tried);
  TESSERA_REQUIRE(
      found != nullptr,
      ErrorCode::kInvalidConfig,
      "the plugin {}, by which ranks on several GPUs talk, cannot be loaded:{}\nInstall "
      "NCCL 2 for CUDA 13 (developer.nvidia.com/nccl) with its headers and build "
      "Tessera again, or name the folder of libnccl.so.2 in LD_LIBRARY_PATH",
      kFile,
      tried);
  return *static_cast<const NcclPlugin*>(found);
}

std::unique_ptr<NcclWorld> join_nccl_world(World& host, const NcclOptions& options) {
  return std::unique_ptr<NcclWorld>(load_nccl_plugin(plugin_places(kFile)).join(host, options));
}

std::string nccl_version(std::string& problem) {
  try {
    const int version = load_nccl_plugin(plugin_places(kFile)).library_version();
    return format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  } catch (const Error& error) {
    problem = error.message();
    return {};
  }
}

}  // namespace tessera
