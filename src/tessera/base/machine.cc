#include "tessera/base/machine.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include <sched.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The first word of a control file, and the second where there is one; empty if it does not exist.
struct Words {
  std::string first;
  std::string second;
};

Words read_words(const fs::path& path) {
  std::ifstream file(path);
  Words words;
  file >> words.first >> words.second;
  return words;
}

// Nothing for an absent file, "max", and the -1 that version 1 writes for "no limit".
std::optional<double> to_limit(const std::string& word) {
  double value = 0;
  std::istringstream stream(word);
  stream.imbue(std::locale::classic());
  return stream >> value && value > 0 ? std::optional(value) : std::nullopt;
}

std::optional<double> ratio(const std::string& quota, const std::string& period) {
  const std::optional<double> numerator = to_limit(quota);
  const std::optional<double> denominator = to_limit(period);
  return numerator && denominator ? std::optional(*numerator / *denominator) : std::nullopt;
}

template <class T>
void lower(std::optional<T>& limit, std::optional<double> other) {
  if (other && (!limit || *other < static_cast<double>(*limit))) {
    limit = static_cast<T>(*other);
  }
}

// Limits that the files of one group set, whichever version they are of.
void apply_group(const fs::path& group, CgroupLimits& limits) {
  const Words cpu = read_words(group / "cpu.max");
  lower(limits.cores, ratio(cpu.first, cpu.second));
  lower(limits.cores,
        ratio(read_words(group / "cpu.cfs_quota_us").first,
              read_words(group / "cpu.cfs_period_us").first));
  lower(limits.memory_bytes, to_limit(read_words(group / "memory.max").first));
  lower(limits.memory_bytes, to_limit(read_words(group / "memory.limit_in_bytes").first));
}

}  // namespace

CgroupLimits cgroup_limits(const fs::path& root, const fs::path& membership) {
  CgroupLimits limits;
  std::ifstream file(membership);
  std::string line;
  // Lines read "number:controllers:/path"; version 2 has one line without controllers. Inside a
  // container the path may be the host's: then only the groups that exist count.
  while (std::getline(file, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const fs::path hierarchy = root / line.substr(first + 1, second - first - 1);
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    apply_group(hierarchy, limits);
    for (; !group.empty(); group = group.parent_path()) {
      apply_group(hierarchy / group, limits);
    }
  }
  return limits;
}

int usable_cores() {
  // Large enough for every machine: the default set ends at 1024 cores.
  constexpr int kMaxCores = 65536;
  cpu_set_t* set = CPU_ALLOC(kMaxCores);
  TESSERA_CHECK(set != nullptr, "no memory for an affinity mask");
  const std::size_t set_bytes = CPU_ALLOC_SIZE(kMaxCores);
  const bool known = ::sched_getaffinity(0, set_bytes, set) == 0;
  int cores = known ? CPU_COUNT_S(set_bytes, set) : 1;
  CPU_FREE(set);
  // Read once: a plan's search asks thousands of times.
  static const std::optional<double> kQuota = cgroup_limits().cores;
  if (kQuota) {
    cores = std::min(cores, static_cast<int>(*kQuota));
  }
  return std::max(cores, 1);
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

std::string host_name() {
  std::array<char, 256> name{};
  const bool known = ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0';
  return known ? name.data() : "unknown";
}

std::optional<std::filesystem::path> user_cache_directory() {
  const auto set = [](const char* name) -> std::optional<std::filesystem::path> {
    const char* const value = std::getenv(name);
    return value != nullptr && value[0] == '/' ? std::optional(std::filesystem::path(value))
                                               : std::nullopt;
  };
  if (const auto cache = set("XDG_CACHE_HOME")) {
    return *cache / "tessera";
  }
  if (const auto home = set("HOME")) {
    return *home / ".cache" / "tessera";
  }
  return std::nullopt;
}

std::int64_t machine_memory_bytes() {
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES);
  const std::int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  TESSERA_REQUIRE(pages > 0 && page_bytes > 0,
                  ErrorCode::kDeviceError,
                  "the system does not say how much memory it has");
  return pages * page_bytes;
}

std::int64_t usable_memory_bytes() {
  const std::int64_t machine = machine_memory_bytes();
  return std::min(machine, cgroup_limits().memory_bytes.value_or(machine));
}

std::int64_t free_memory_bytes(const fs::path& meminfo) {
  const std::int64_t usable = usable_memory_bytes();
  std::ifstream file(meminfo);
  constexpr std::string_view kKey = "MemAvailable:";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kKey)) {
      const std::int64_t kibibytes = std::atoll(line.c_str() + kKey.size());
      return std::min(usable, kibibytes * 1024);
    }
  }
  return usable;
}

}  // namespace tessera
