#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "tessera/config/run_config.h"

namespace tessera {

// What a config is to say: all that a run needs, or what its step computes, without what a run
// reads and writes, or how its ranks lie on a cluster, without a model.
enum class ConfigUse : std::uint8_t { kRun, kPlan, kLayout };

// Reads a run file, applies `overrides` ("--section.key=value", later ones win) and validates.
// Errors: kInvalidConfig naming file:line:column or the override, what was found and expected.
// An empty path stands for no file: then the overrides say all.
RunConfig load_run_config(const std::filesystem::path& path,
                          std::span<const std::string> overrides = {},
                          ConfigUse use = ConfigUse::kRun);

// Parses TOML; keys that `text` leaves out keep their defaults. `source` names it in errors.
// Values are checked one by one, not against each other: see validate(). Errors: kInvalidConfig.
RunConfig parse_run_config(std::string_view text, std::string_view source);

// Sets one key from "--section.key=value". Strings need no quotes; a list is a TOML array, or bare
// text for a list of one. "--section.key=" leaves a key out that may be. Errors: kInvalidConfig
// naming the override.
void apply_override(RunConfig& config, std::string_view override);

// The override that sets the key ("section.key") to what `config` has. Errors: kInvalidConfig for
// an unknown key.
std::string override_text(const RunConfig& config, std::string_view key);

// Checks the values against each other. A relation between model dims is checked where both are
// set, so the caller that fills them in from a flavor validates again. Errors: kInvalidConfig.
void validate(const RunConfig& config, ConfigUse use = ConfigUse::kRun);

// Checks [parallel] as far as it is given. Errors: kInvalidConfig.
void validate_degrees(const RunConfig& config);

// Lengths of sequences that context ranks can share are multiples of it; 1 without any.
std::int64_t context_unit(const RunConfig& config);

// What validate() checks outside [model], for a run of a model that no config describes. Errors:
// kInvalidConfig.
void validate_run(const RunConfig& config, ConfigUse use = ConfigUse::kRun);

// The config as TOML that parses back to an equal RunConfig; empty optionals are left out.
std::string to_toml(const RunConfig& config);

// The documented schema: a run file with every key at its default (`tessera config`), and the
// reference page docs/config.md.
std::string schema_toml();
std::string schema_markdown();

}  // namespace tessera
