#include <cstdint>
#include <limits>
#include <memory>

#include <CLI/CLI.hpp>

#include "tessera/cli/subcommands.h"
#include "tessera/train/commands.h"

namespace tessera {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("generate", "Continue a prompt with a trained model");
  // Shared with the callback, which lives as long as the command.
  auto options = std::make_shared<GenerateOptions>();
  command
      .add_option("CHECKPOINT",
                  options->checkpoint,
                  "A checkpoint, or a run directory: its newest checkpoint")
      ->required();
  command.add_option("--prompt", options->prompt, "Text to continue");
  command.add_option("--tokens", options->max_tokens, "Length of the continuation in tokens")
      ->check(CLI::Range(std::int64_t{1}, kMaxCount))
      ->capture_default_str();
  command
      .add_option("--temperature",
                  options->temperature,
                  "Randomness of the choice; 0: always the likeliest token")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  command.add_option("--top-k", options->top_k, "Choose among this many tokens; 0: among all")
      ->check(CLI::Range(std::int64_t{0}, kMaxCount))
      ->capture_default_str();
  command
      .add_option("--top-p",
                  options->top_p,
                  "Choose among the likeliest tokens that make up this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--seed", options->seed, "Same seed, same continuation")
      ->capture_default_str();
  command.callback([options] { generate_command(*options); });
}

}  // namespace tessera
