#include "tessera/resolve/chosen_memory.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/resolve/recompute_rules.h"

namespace tessera {
namespace {

// "memory.recompute, memory.offload_optimizer = "auto": ".
std::string auto_keys(const PlannedRun& run) {
  std::string keys;
  for (const auto& [is_auto, key] :
       {std::pair(run.chooses_recompute, "recompute"),
        std::pair(run.may_move.optimizer != Space::kDevice, "offload_optimizer"),
        std::pair(run.may_move.parameters != Space::kDevice, "offload_parameters"),
        std::pair(run.may_move.activations != Space::kDevice, "offload_activations")}) {
    keys += is_auto ? format("{}memory.{}", keys.empty() ? "" : ", ", key) : "";
  }
  return format("{} = \"auto\": ", keys);
}

// What layers do, and which states lie elsewhere.
std::vector<std::string> chosen_parts(const ChosenMemory& chosen, const PlannedRun& run) {
  const RecomputeRules& rules = run.plan.passes.recompute;
  const bool stores =
      std::ranges::any_of(rules, [](const RecomputeRule& rule) { return !rule.store.empty(); });
  std::vector<std::string> parts;
  if (run.chooses_recompute || stores) {
    parts.push_back(to_string(rules));
  }
  for (const auto& [bytes, space, what] :
       {std::tuple(chosen.moved.optimizer, run.may_move.optimizer, "optimizer states"),
        std::tuple(chosen.moved.parameters, run.may_move.parameters, "parameters")}) {
    if (bytes > 0) {
      parts.push_back(format("{} of {} lie in {}",
                             format_bytes(bytes),
                             what,
                             space == Space::kFile ? "a file" : "the host's memory"));
    }
  }
  return parts;
}

std::string cost_text(const ChosenMemory& chosen, bool may_move) {
  const auto percent = [](double part) { return format("{:.1f} %", 100.0 * part); };
  std::string text =
      may_move
          ? format("a step takes {} longer for what is computed again", percent(chosen.repeated))
          : format("which repeats {} of a step's work", percent(chosen.repeated));
  if (may_move && chosen.for_states) {
    text += format(", about {} for states that move", percent(*chosen.for_states));
  }
  if (may_move && chosen.for_layers) {
    text += format(", about {} for activations that do", percent(*chosen.for_layers));
  }
  if (!chosen.search) {
    return text + ", as an earlier start chose";
  }
  if (chosen.search->saved_by_gigabyte) {
    text += format(", {}{} with 1 GB more",
                   may_move ? "in all " : "",
                   percent(chosen.added() - *chosen.search->saved_by_gigabyte));
  }
  return text;
}

}  // namespace

std::string to_string(const ChosenMemory& chosen, const PlannedRun& run) {
  std::string text = auto_keys(run);
  for (const std::string& part : chosen_parts(chosen, run)) {
    text += part + (run.may_move.any() ? "; " : ", ");
  }
  text += cost_text(chosen, run.may_move.any());
  return text + format("; to keep all needs {}", format_bytes(chosen.all_bytes));
}

}  // namespace tessera
