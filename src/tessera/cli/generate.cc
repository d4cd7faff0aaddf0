#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/utf8.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/input_options.h"
#include "tessera/cli/path_options.h"
#include "tessera/cli/subcommands.h"
#include "tessera/ir/dtype.h"

namespace tessera {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxBatch = 4096;

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

// What can be found in a text.
CLI::Validator text_to_find() {
  return {[](std::string& text) {
            return text.empty() ? std::string("The text is empty")
                   : valid_utf8_prefix(text) < text.size()
                       ? format("Byte {} begins no UTF-8 character", valid_utf8_prefix(text))
                       : std::string();
          },
          ""};
}

// Where prompts come from, and where what follows them goes.
void add_prompts(CLI::App& command, const std::shared_ptr<GenerateOptions>& options) {
  CLI::Option* const prompt =
      command.add_option("--prompt", options->prompt, "Text to continue; -: what stdin says");
  CLI::Option* const prompt_file =
      add_path(command,
               "--prompt-file",
               options->prompt_file,
               "A file with the text to continue, whose last line feed does not count; -: "
               "stdin")
          ->excludes(prompt);
  CLI::Option* const prompts_file =
      add_path(command,
               "--prompts",
               options->prompts_file,
               "A file of prompts, one a line, or (.jsonl) \"prompt\" of an object a line; "
               "gives an object a line, in the same order; -: stdin")
          ->excludes(prompt)
          ->excludes(prompt_file);
  add_output(command,
             "--output",
             options->output,
             "Where the objects go that --prompts gives; not "
             "given: to stdout")
      ->needs(prompts_file);
  command.add_option("--batch", options->batch, "How many of --prompts run at a time")
      ->check(CLI::Range(std::int64_t{1}, kMaxBatch))
      ->capture_default_str()
      ->needs(prompts_file);
}

// What prompts are.
void add_chat(CLI::App& command, const std::shared_ptr<GenerateOptions>& options) {
  CLI::Option* const chat = command.add_flag(
      "--chat",
      options->chat,
      "Answer: a prompt is what a user says, in the chat template of the run's data; "
      "prints the answer alone");
  command.add_option("--system", options->system, "What the system says before the user")
      ->needs(chat);
}

// How tokens are chosen, and where a continuation ends.
void add_choice(CLI::App& command, const std::shared_ptr<GenerateOptions>& options) {
  command.add_option("--tokens", options->max_tokens, "Length of the continuation in tokens")
      ->check(CLI::Range(std::int64_t{1}, kMaxCount))
      ->capture_default_str();
  command
      .add_option("--context",
                  options->context,
                  "Tokens of a text with its prompt; 0: as in training (data.sequence_length)")
      ->check(CLI::Range(std::int64_t{0}, kMaxCount))
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
  command
      .add_option("--min-p",
                  options->min_p,
                  "Choose among tokens at least this many times as likely as the likeliest")
      ->check(number_between(0.0, 1.0))
      ->capture_default_str();
  command
      .add_option("--repetition-penalty",
                  options->repetition_penalty,
                  "Divides positive and multiplies negative logits of tokens that the text has; 1: "
                  "none")
      ->check(number_between(0.01, 100.0))
      ->capture_default_str();
  command
      .add_option("--stop",
                  options->stops,
                  "Ends the continuation before this text; may be given several times")
      ->check(text_to_find())
      ->allow_extra_args(false);
  command.add_option("--seed", options->seed, "Same seed, same continuation")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()))
      ->capture_default_str();
}

void refuse_extras(const CLI::App& command) {
  const std::vector<std::string> extras = command.remaining();
  for (const std::string& extra : extras) {
    const bool is_key = extra.starts_with("--") && extra.find('.') < extra.find('=');
    TESSERA_REQUIRE(!is_key,
                    ErrorCode::kInvalidConfig,
                    "{}: generate runs on one rank, whatever the run was trained on, and takes no "
                    "keys of a run: leave it out (see tessera generate --help)",
                    extra);
  }
  if (!extras.empty()) {
    throw CLI::ExtrasError(command.get_name(), extras);
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("generate", "Continue a prompt with a trained model");
  // Shared with the callback, which lives as long as the command.
  auto options = std::make_shared<GenerateOptions>();
  add_path(command,
           "CHECKPOINT",
           options->checkpoint,
           "A checkpoint, or a run directory: its newest checkpoint")
      ->required();
  add_prompts(command, options);
  add_chat(command, options);
  add_choice(command, options);
  command
      .add_option_function<std::string>(
          "--dtype",
          [options](const std::string& name) { options->dtype = parse_dtype(name); },
          "Of weights and caches, f32 or bf16; not given: as the model was trained")
      ->check(CLI::IsMember({"f32", "bf16"}));
  command
      .add_option("--device",
                  options->device,
                  "What computes: cpu, cuda (a GPU) or auto, which is cuda where there is one; not "
                  "given: auto for a model that was trained on GPUs, else cpu")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}));
  add_mark_options(command, options->marks);
  command.add_flag("--verbose", options->verbose, "Say how fast it was");
  // What the parser does not know: keys of a run get a word of their own.
  command.allow_extras();
  command.callback([&command, options] {
    refuse_extras(command);
    if (options->prompt == "-") {
      options->prompt_file = "-";
    }
    generate_command(*options);
  });
}

}  // namespace tessera
