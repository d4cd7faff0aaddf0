#include "tessera/comm/nccl/nccl_plugin.h"

#include <cstdlib>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/plugin.h"

namespace tessera {
namespace {

constexpr const char* kFile = "libtessera_nccl.so";

// Leaves what the user has set. Of files, such as /etc/nccl.conf, NCCL then takes no other value.
void set_default(const char* name, const char* value) {
  constexpr int kKeep = 0;
  ::setenv(name, value, kKeep);
}

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

void set_nccl_environment(bool deterministic) {
  // The kernels of two groups may wait for each other's place on a device: they begin in the order
  // in which the rank's thread enqueued them, which all ranks share.
  set_default("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  // Replays by several threads of one process can block each other by the events that this costs.
  set_default("NCCL_GRAPH_MIXING_SUPPORT", "0");
  if (!deterministic) {
    return;
  }
  // Switches add up in the order in which values come.
  constexpr const char* kSwitches = "NCCL_NVLS_ENABLE";
  set_default(kSwitches, "0");
  if (const std::string_view found = std::getenv(kSwitches); found != "0") {
    log_warning(
        format("{}={} in the environment lets NVLink's switches add up, whose sums may not repeat: "
               "leave it out, or set run.deterministic = false",
               kSwitches,
               found));
  }
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
