#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tessera {

// What the control groups of this process, versions 1 and 2, leave to it; nothing where they set no
// limit. A parent group's limit counts like the process's own.
struct CgroupLimits {
  std::optional<double> cores;
  std::optional<std::int64_t> memory_bytes;
};

// `root` holds the control files; `membership` names this process's groups.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/sys/fs/cgroup",
                           const std::filesystem::path& membership = "/proc/self/cgroup");

// Cores that this process may keep busy: its affinity mask, cut to the control group's quota
// (rounded down); at least 1.
int usable_cores();

// The processor's name as the system gives it, or "unknown".
std::string cpu_name();

// The machine's name in its network, or "unknown".
std::string host_name();

// Where this user's programs keep what they can make again, and Tessera its part of that:
// $XDG_CACHE_HOME/tessera, or $HOME/.cache/tessera. Nothing where neither is set.
std::optional<std::filesystem::path> user_cache_directory();

// Main memory of the machine. Errors: kDeviceError when the system does not say.
std::int64_t machine_memory_bytes();

// Main memory that this process may fill: the machine's, cut to the control group's limit.
// Errors: kDeviceError when the system does not say.
std::int64_t usable_memory_bytes();

// The part of usable_memory_bytes() that other processes leave now, as the kernel estimates it
// (MemAvailable). Errors: kDeviceError when the system does not say what it has.
std::int64_t free_memory_bytes(const std::filesystem::path& meminfo = "/proc/meminfo");

}  // namespace tessera
