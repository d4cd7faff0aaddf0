#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera {

// What the checkpoints of a run need.
struct DiskNeed {
  std::int64_t checkpoint_bytes = 0;
  std::int64_t keep = 0;     // newest ones; 0: all
  bool keeps_best = false;   // beside these
  std::int64_t present = 0;  // are there
};

// What to say where the disk of `directory` will not hold the checkpoints of a run: those it keeps
// (of all, two are asked for), the one being written and one being removed. Empty where it will, or
// does not say.
std::string disk_shortage(const std::filesystem::path& directory, const DiskNeed& need);

}  // namespace tessera
