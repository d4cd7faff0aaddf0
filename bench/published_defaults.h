#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Cells that tables leave empty, by column, as a table would have them.
using CellDefaults = std::map<std::string, std::string, std::less<>>;

// Chips that differ in facts alone: one curve for all of their cluster files.
struct ChipFamily {
  std::string name;
  std::vector<std::string> files;
  std::map<std::string, std::string, std::less<>>
      gpus;            // whose kernels others timed, and the file of each
  std::string capped;  // that of these whose products have a factor of their own; empty: none
};

// What a score assumes of systems, set once for each (bench/published_defaults.toml).
class PublishedDefaults {
 public:
  // Errors: kInvalidConfig with file, line and column, what was found and what was expected.
  explicit PublishedDefaults(const std::filesystem::path& path);

  // The cluster file of the longest name that `chip` begins with. Errors: kInvalidData with the
  // names that there are.
  const std::string& chip_file(std::string_view chip) const;

  // Of what stands under `compiled`. Errors: kInvalidData.
  const std::string& stack(std::string_view compiled) const;

  // What stands in for an empty cell: by the longest name that the system begins with, else by all
  // systems'; none where neither says.
  std::optional<std::string> cell(std::string_view system, std::string_view column) const;

  const std::vector<ChipFamily>& families() const { return families_; }

 private:
  std::map<std::string, std::string, std::less<>> chips_;
  std::map<std::string, std::string, std::less<>> stacks_;
  CellDefaults all_;
  std::map<std::string, CellDefaults, std::less<>> systems_;
  std::vector<ChipFamily> families_;
};

}  // namespace tessera
