#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/cluster.h"
#include "tessera/simulate/simulate.h"

namespace tessera {

// What makes a difference that is neither a device's nor a link's: the program that issues kernels,
// and those that it brings. A file of stacks (docs/formats.md) has a table for each.
struct SoftwareStack {
  std::string name;
  double issue = 0.0;       // seconds from one instruction to the next, of a rank's host
  double collective = 0.0;  // seconds that it takes longer to issue what talks to other ranks
  double attention = 1.0;   // share of the speed of the device's best attention that its own has
  std::string source;       // where the constants are from, in words

  friend bool operator==(const SoftwareStack&, const SoftwareStack&) = default;
};

// In the order of their names. `source` names the text in errors. Errors: kInvalidConfig with file,
// line and column, what was found and what was expected.
std::vector<SoftwareStack> parse_stacks(std::string_view text, std::string_view source);
std::vector<SoftwareStack> load_stacks(const std::filesystem::path& file);

// "FILE:NAME". Errors: as above; kInvalidConfig for a name that the file lacks, with those that it
// has.
SoftwareStack find_stack(std::string_view text);

// The cluster as the kernels of the stack have it, and the options as its host does.
Cluster with_stack(Cluster cluster, const SoftwareStack& stack);
SimulationOptions with_stack(SimulationOptions options, const SoftwareStack& stack);

// As TOML; parses back to an equal stack.
std::string to_toml(const SoftwareStack& stack);

}  // namespace tessera
