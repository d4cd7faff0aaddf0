#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "tessera/base/format.h"
#include "tessera/cli/subcommands.h"
#include "tessera/train/commands.h"

namespace tessera {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

// CLI::Range lets NaN pass, which is neither below nor above.
CLI::Validator number_between(double low, double high) {
  const CLI::Validator range = CLI::Range(low, high);
  return {[range, low, high](std::string& text) {
            double value = 0.0;
            const bool nan = CLI::detail::lexical_cast(text, value) && std::isnan(value);
            return nan ? format("Value {} not in range {:f} to {:f}", text, low, high)
                       : range(text);
          },
          ""};
}

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
      ->check(number_between(0.0, 1000.0))
      ->capture_default_str();
  command.add_option("--top-k", options->top_k, "Choose among this many tokens; 0: among all")
      ->check(CLI::Range(std::int64_t{0}, kMaxCount))
      ->capture_default_str();
  command
      .add_option("--top-p",
                  options->top_p,
                  "Choose among the likeliest tokens that make up this probability")
      ->check(number_between(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--seed", options->seed, "Same seed, same continuation")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()))
      ->capture_default_str();
  command.callback([options] { generate_command(*options); });
}

}  // namespace tessera
