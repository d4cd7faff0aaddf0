#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

// The small run that is killed, and what it comes to.
namespace tessera::faults {

constexpr int kSteps = 40;

// A corpus that is the same each time, and a run file of a tiny model, whose best checkpoint is now
// the newest and now an older one.
void write_inputs(const std::filesystem::path& directory);

// The name of the best checkpoint; empty: the run has none yet.
std::string best(const std::filesystem::path& run);

// What a run came to.
struct Result {
  std::vector<std::string> rows;
  std::map<std::string, std::string> files;
  std::string best;
};

Result result_of(const std::filesystem::path& run);

}  // namespace tessera::faults
