#include "tessera/train/commands.h"

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/print.h"
#include "tessera/base/units.h"
#include "tessera/program/cost_table.h"
#include "tessera/train/exit_record.h"
#include "tessera/train/explain.h"
#include "tessera/train/generate.h"
#include "tessera/train/prompts.h"
#include "tessera/train/rank_backend.h"
#include "tessera/train/resolve.h"
#include "tessera/train/run_layout.h"
#include "tessera/train/run_memory.h"
#include "tessera/train/step_program.h"
#include "tessera/train/stop_signal.h"
#include "tessera/train/trainer.h"
#include "tessera/train/training_state.h"

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
  std::string text = format("prompt: {} tokens at {:.0f} tokens/s",
                            speed.prompt_tokens,
                            static_cast<double>(speed.prompt_tokens) / speed.prompt_seconds);
  if (speed.tokens > 0) {
    text += format("; then {} tokens at {:.1f} tokens/s",
                   speed.tokens,
                   static_cast<double>(speed.tokens) / speed.seconds);
  }
  return text;
}

std::string cost_text(const Program& program) {
  std::string text =
      format("{:<26} {:>8} {:>14} {:>14} {:>14}\n", "op", "runs", "FLOP", "read", "written");
  for (const CostRow& row : cost_by_op(program)) {
    text += format("{:<26} {:>8} {:>14} {:>14} {:>14}\n",
                   row.op,
                   row.count,
                   format_count(row.cost.flop),
                   format_bytes(static_cast<std::int64_t>(row.cost.bytes_read)),
                   format_bytes(static_cast<std::int64_t>(row.cost.bytes_written)));
  }
  return text;
}

// Whether a rank's memory is there: by memory.limit_bytes, on the cluster's devices, or here.
std::string fit_text(const RunConfig& config, const RunLayout& layout, const RunMemory& memory) {
  const bool is_limited = config.memory.limit_bytes > 0;
  const bool is_described = !is_limited && layout.device.memory_bytes > 0;
  // What checkpoints are written from lies on the host.
  const std::int64_t needed = is_described ? memory.arena : memory.total();
  const std::int64_t limit = is_described ? layout.device.memory_bytes : memory_limit(config);
  const std::string where = is_limited     ? "memory.limit_bytes allows"
                            : is_described ? format("a {} of the cluster has", layout.device.name)
                                           : "this machine has free for it";
  return format("  it {}: it needs {}, and {} {}\n",
                needed <= limit ? "fits" : "does not fit",
                format_bytes(needed),
                where,
                format_bytes(limit));
}

}  // namespace

void train_command(const RunConfig& config) {
  // What nobody reads is no reason to end before all is saved, printed and sampled.
  std::signal(SIGPIPE, SIG_IGN);
  const NothingToSave outside_steps;
  const RunConfig resolved = resolve(config);
  const TrainResult result = train(resolved, resolve_model(resolved));
  if (result.rank != 0) {
    return;
  }
  print_now(format("metrics: {0}/metrics.jsonl, checkpoints: {0}/checkpoints (step {1}{2})\n",
                   resolved.run.dir,
                   result.step,
                   result.loss ? format(", loss {:.4f}", *result.loss) : ""));
  if (result.interrupted) {
    log_info(format("stopped after step {}; {} goes on from there",
                    result.step,
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

void explain_command(const RunConfig& config) {
  const RunConfig resolved = resolve(config);
  const ModelDescription model = resolve_model(resolved);
  const auto backend =
      make_run_backend(resolved.run.device, static_cast<int>(resolved.run.threads));
  const RunPrograms programs =
      compile_run(resolved,
                  model,
                  [&](const Op& op, std::span<const View> operands, std::span<const View> results) {
                    return backend->workspace_bytes(op, operands, results);
                  });
  const Program& program = programs.step;
  print(to_string(program));
  const ParameterCounts parameters = count_parameters(parameter_inits(step_graph(resolved, model)));
  const std::int64_t tokens = resolved.train.global_batch * resolved.data.sequence_length;
  print(format(
      "\nparameters: {}{}\ntokens a step: {}\n",
      format_grouped(parameters.all),
      parameters.frozen > 0 ? format(", {} of them frozen", format_grouped(parameters.frozen)) : "",
      tokens));
  print(format(
      "training FLOP a token ({} + 12 layers heads head_dim seq, no causal discount): {}\n",
      parameters.frozen > 0 ? "6N, 4N of what is frozen," : "6N",
      format_count(training_flop_per_token(model, parameters, resolved.data.sequence_length))));
  const RunLayout layout = run_layout(resolved);
  const std::int64_t ranks = layout.mesh.num_ranks();
  if (ranks > 1) {
    print(explain_ranks(layout, parameter_inits(step_graph(resolved, model)), program));
  }
  const RunMemory memory = run_memory(resolved, model, programs);
  print(format("\nmemory {}at its peak, by category\n{}{}",
               ranks > 1 ? format("of each of ranks 0 to {} ", ranks - 1) : "",
               memory_table(memory),
               fit_text(resolved, layout, memory)));
  print(format("\nwork of a step{}, by op (attention counts visible pairs of causal sequences)\n{}",
               ranks > 1 ? " on a rank" : "",
               cost_text(program)));
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
