#include "tessera/cli/commands.h"

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/print.h"
#include "tessera/base/terminal.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/dataset/prompts.h"
#include "tessera/infer/generate.h"
#include "tessera/launch/exit_record.h"
#include "tessera/launch/stop_signal.h"
#include "tessera/resolve/explain.h"
#include "tessera/resolve/explain_pipeline.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/start_checks.h"
#include "tessera/resolve/weights_defaults.h"
#include "tessera/resolve/weights_section.h"
#include "tessera/simulate/memory_picture.h"
#include "tessera/train/trainer.h"

namespace tessera {
namespace {

// Text that streams to the terminal as it arrives.
void print_now(std::string_view text) {
  print(text);
  std::fflush(stdout);
}

// Where a model ends is for whoever reads the text, not part of it.
GenerationSpeed generate_one(const GenerateOptions& options, const Prompt& prompt) {
  require_utf8(prompt);
  Finish finish = Finish::kLength;
  const GenerationSpeed speed = generate(
      options,
      std::span(&prompt, 1),
      {.text = [](std::size_t, std::string_view text) { print_now(text); },
       .finished = [&](std::size_t, const Continuation& found) { finish = found.finish; }});
  print_now("\n");  // before what comes on stderr
  if (finish == Finish::kContext) {
    log_info(
        format("the text has the {} tokens that the model's sequences may have "
               "(data.sequence_length; --context allows more)",
               speed.sequence_length));
  }
  return speed;
}

// A line for each prompt, in their order, as soon as it and all before it are done.
GenerationSpeed generate_many(const GenerateOptions& options, const std::vector<Prompt>& prompts) {
  std::optional<AtomicFile> file;
  if (!options.output.empty()) {
    require_other_file(options.output, options.prompts_file);
    file.emplace(options.output);
  }
  const auto finished = [&](std::size_t prompt, const Continuation& found) {
    const nlohmann::ordered_json object = {{"prompt", prompts[prompt].text},
                                           {"text", found.text},
                                           {"tokens", found.num_tokens},
                                           {"finish", name(found.finish)}};
    const std::string line = object.dump() + "\n";
    file ? file->write(line) : print_now(line);
  };
  const GenerationSpeed speed = generate(options, prompts, {.text = {}, .finished = finished});
  if (file) {
    file->commit();
  }
  return speed;
}

std::string speed_text(const GenerationSpeed& speed) {
  std::string text = format("prompt: {} at {:.0f} tokens/s",
                            format_plural(speed.prompt_tokens, "token"),
                            static_cast<double>(speed.prompt_tokens) / speed.prompt_seconds);
  if (speed.tokens > 0) {
    text += format("; then {} at {:.1f} tokens/s",
                   format_plural(speed.tokens, "token"),
                   static_cast<double>(speed.tokens) / speed.seconds);
  }
  return text;
}

// The files that are asked for. Whether any is.
bool write_schedule(const Explanation& facts, const ExplainOptions& options) {
  const bool writes_table = !options.schedule.empty() && options.schedule != "-";
  if (writes_table) {
    TESSERA_REQUIRE(is_table({.schedule = options.schedule}),
                    ErrorCode::kInvalidConfig,
                    "--schedule={}: expected a name that ends in .csv, as pipeline.schedule wants "
                    "it",
                    options.schedule);
    write_file_atomic(options.schedule, schedule_csv(facts));
  }
  TESSERA_REQUIRE(options.schedule != "-" || !options.json,
                  ErrorCode::kInvalidConfig,
                  "--schedule draws, and --json prints one object: expected one of the two");
  if (!options.gantt.empty()) {
    write_file_atomic(options.gantt, schedule_gantt(facts));
  }
  return writes_table || !options.gantt.empty();
}

// Before a large run is compiled for nothing.
void require_picture(std::string_view option, const std::filesystem::path& file) {
  TESSERA_REQUIRE(file.empty() || file.extension() == ".svg",
                  ErrorCode::kInvalidConfig,
                  "{}={}: expected a name that ends in .svg: the drawing is one",
                  option,
                  file.string());
}

// Of the pipeline rank that needs most, where that is asked for. Whether it is.
bool write_memory_picture(const Explanation& facts, const std::filesystem::path& file) {
  if (file.empty()) {
    return false;
  }
  const auto most = std::ranges::max_element(
      facts.programs, {}, [](const Programs& own) { return own.step.arena_bytes; });
  write_file_atomic(file, draw_memory(most->step));
  return true;
}

// The step whose state the run leaves behind: later ones changed nothing.
std::int64_t saved_step(const TrainResult& result) {
  const auto step = result.checkpoint ? checkpoint_step(*result.checkpoint) : std::nullopt;
  return step.value_or(result.step);
}

}  // namespace

void train_command(const RunConfig& config, const TrainOptions& options) {
  // What nobody reads is no reason to end before all is saved, printed and sampled.
  std::signal(SIGPIPE, SIG_IGN);
  const NothingToSave outside_steps;
  const std::optional<MpiLaunch> launch = find_mpi_launch();
  const bool says = !launch || launch->rank == 0;
  const RunConfig resolved = resolve(with_weights_defaults(config, ConfigUse::kRun, says));
  if (const std::string other = other_directory(resolved); !other.empty() && says) {
    log_warning(other);
  }
  TrainHooks hooks;
  hooks.trace_step = options.trace_step;
  const TrainResult result = train(resolved, resolve_model(resolved), hooks);
  if (result.rank != 0) {
    return;
  }
  const std::int64_t saved = saved_step(result);
  print_now(format(
      "metrics: {0}/metrics.jsonl, checkpoints: {0}/checkpoints ({1})\n",
      resolved.run.dir,
      saved == result.step
          ? format("step {}{}", saved, result.loss ? format(", loss {:.4f}", *result.loss) : "")
          : format("step {}: the steps after it, up to {}, were not finite and changed nothing",
                   saved,
                   result.step)));
  if (result.interrupted) {
    log_info(format("stopped after step {}; {} goes on from there",
                    saved,
                    resolved.checkpoint.resume == "auto" ? "the same command"
                                                         : "checkpoint.resume = \"auto\""));
  } else if (!resolved.sample.prompt.empty()) {
    with_exit_record({.run_dir = resolved.run.dir}, result.step, [&] {
      generate_command({.checkpoint = result.checkpoint.value(),
                        .prompt = resolved.sample.prompt,
                        .max_tokens = resolved.sample.tokens,
                        .temperature = resolved.sample.temperature,
                        .device = resolved.run.device,
                        .seed = static_cast<std::uint64_t>(resolved.run.seed)});
    });
  }
}

void explain_command(const RunConfig& config, const ExplainOptions& options) {
  require_picture("--gantt", options.gantt);
  require_picture("--memory-picture", options.memory);
  const Explanation facts =
      explain(with_weights_defaults(config, ConfigUse::kPlan, true), options.target);
  if (const std::string& weights = facts.config.model.weights;
      !weights.empty() && std::filesystem::exists(weights)) {
    require_same_model(facts.config, weights_section(weights));
  }
  const bool writes_schedule = write_schedule(facts, options);
  const bool writes = write_memory_picture(facts, options.memory) || writes_schedule;
  if (options.json) {
    print(explanation_json(facts, options.program));
    return;
  }
  std::vector<std::string> parts;
  if (options.plan) {
    parts.push_back(to_string(facts.run.plan));
  }
  if (options.program) {
    for (const Programs& own : facts.programs) {
      parts.push_back(to_string(own.step));
    }
  }
  if (options.parameters) {
    parts.push_back(parameters_text(facts));
  }
  if (options.ops) {
    parts.push_back(ops_text(facts));
  }
  if (options.schedule == "-") {
    constexpr std::size_t kUncut = std::size_t{1} << 20U;
    const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
    parts.push_back(schedule_text(
        facts, is_terminal ? static_cast<std::size_t>(terminal_width(stdout)) : kUncut));
  }
  if (parts.empty() && !writes) {
    parts.push_back(summary_text(facts));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    print((i > 0 ? "\n" : "") + parts[i]);
  }
}

void generate_command(const GenerateOptions& options) {
  const bool many = !options.prompts_file.empty();
  const GenerationSpeed speed =
      many ? generate_many(options, read_prompts(options.prompts_file))
           : generate_one(options,
                          options.prompt_file.empty() ? Prompt{.text = options.prompt, .place = ""}
                                                      : read_prompt(options.prompt_file));
  if (options.verbose || ::isatty(STDERR_FILENO) == 1) {
    log_info(speed_text(speed));
  }
}

}  // namespace tessera
