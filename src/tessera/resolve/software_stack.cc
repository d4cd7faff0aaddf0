#include "tessera/resolve/software_stack.h"

#include <algorithm>
#include <array>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/toml_section.h"
#include "tessera/base/units.h"
#include "tessera/cost/constants.h"

namespace tessera {

std::vector<SoftwareStack> parse_stacks(std::string_view text, std::string_view source) {
  const toml::table table = parse_toml(text, source);
  const TomlSection file{table, source, ""};
  std::vector<SoftwareStack> stacks;
  for (const auto& entry : table) {
    const std::string name(entry.first.str());
    const TomlSection found = require_table(file, name, "a table of a stack, such as [eager]");
    const TomlSection stack{found.table, source, name + "."};
    refuse_unknown_keys(stack,
                        std::to_array<std::string>({"issue", "collective", "attention", "source"}));
    SoftwareStack& read = stacks.emplace_back();
    read.name = name;
    read.issue = read_quantity(stack, "issue", "s", "7 us");
    if (has(stack, "collective")) {
      read.collective = read_quantity(stack, "collective", "s", "200 us");
    }
    if (has(stack, "attention")) {
      read.attention = read_number(stack,
                                   "attention",
                                   {.least = std::numeric_limits<double>::min(),
                                    .most = 1.0,
                                    .expected = "a share: a number above 0, at most 1"});
    }
    read.source = read_text(stack, "source");
  }
  return stacks;
}

std::vector<SoftwareStack> load_stacks(const std::filesystem::path& file) {
  return parse_stacks(read_file(file), file.string());
}

SoftwareStack find_stack(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  TESSERA_REQUIRE(colon != std::string_view::npos && colon > 0 && colon + 1 < text.size(),
                  ErrorCode::kInvalidConfig,
                  "--stack={}: expected a file of stacks and the name of one, as in "
                  "--stack=configs/stacks.toml:pytorch-eager",
                  text);
  const std::string_view name = text.substr(colon + 1);
  const std::vector<SoftwareStack> stacks = load_stacks(text.substr(0, colon));
  const auto stack = std::ranges::find(stacks, name, &SoftwareStack::name);
  if (stack == stacks.end()) {
    std::string names;
    for (const SoftwareStack& each : stacks) {
      names += format("{}{}", names.empty() ? "" : ", ", each.name);
    }
    fail(ErrorCode::kInvalidConfig,
         "--stack={}: found no stack \"{}\" in the file, expected one of {}",
         text,
         name,
         names);
  }
  return *stack;
}

Cluster with_stack(Cluster cluster, const SoftwareStack& stack) {
  DeviceCurve curve = cluster.device.curve.value_or(kUsualCurve);
  curve.attention.forward *= stack.attention;
  if (cluster.device.curve || stack.attention != 1.0) {
    cluster.device.curve = curve;
  }
  return cluster;
}

SimulationOptions with_stack(SimulationOptions options, const SoftwareStack& stack) {
  options.issue = to_ticks(stack.issue);
  options.issue_leg = to_ticks(stack.collective);
  return options;
}

std::string to_toml(const SoftwareStack& stack) {
  return format("[{}]\nissue = {}\ncollective = {}\nattention = {}\nsource = {}\n",
                stack.name,
                toml_quantity(stack.issue, "s"),
                toml_quantity(stack.collective, "s"),
                toml_number(stack.attention),
                toml_string(stack.source));
}

}  // namespace tessera
