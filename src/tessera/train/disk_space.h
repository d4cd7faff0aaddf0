#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera {

// What to say where the disk of `directory` will not hold the checkpoints of a run: those it keeps
// (0: all, of which two are asked for), the one being written and one being removed. Empty where it
// will, or does not say. `present` of them are there.
std::string disk_shortage(const std::filesystem::path& directory,
                          std::int64_t checkpoint_bytes,
                          std::int64_t keep,
                          std::int64_t present);

}  // namespace tessera
