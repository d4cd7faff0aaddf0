#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// What a device waits for that is neither it nor its links: the program that issues its kernels. A
// file of stacks (docs/formats.md) has a table for each.
struct SoftwareStack {
  std::string name;
  double issue = 0.0;  // seconds from one instruction to the next, of a rank's host
  std::string source;  // where the constants are from, in words

  friend bool operator==(const SoftwareStack&, const SoftwareStack&) = default;
};

// In the order of their names. `source` names the text in errors. Errors: kInvalidConfig with file,
// line and column, what was found and what was expected.
std::vector<SoftwareStack> parse_stacks(std::string_view text, std::string_view source);
std::vector<SoftwareStack> load_stacks(const std::filesystem::path& file);

// "FILE:NAME". Errors: as above; kInvalidConfig for a name that the file lacks, with those that it
// has.
SoftwareStack find_stack(std::string_view text);

// As TOML; parses back to an equal stack.
std::string to_toml(const SoftwareStack& stack);

}  // namespace tessera
