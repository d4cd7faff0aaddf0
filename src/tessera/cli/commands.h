#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/config/run_config.h"
#include "tessera/infer/generate.h"

namespace tessera {

struct TrainOptions {
  std::optional<std::int64_t> trace_step = {};  // as TrainHooks has it
};

// `tessera train`: trains, prints progress, writes metrics and checkpoints into config.run.dir.
void train_command(const RunConfig& config, const TrainOptions& options);

// Parts that `tessera explain` prints in place of its one screen.
struct ExplainOptions {
  bool program = false;  // by itself the text that parse_program() reads
  bool plan = false;     // by itself the text that parse_plan() reads
  bool parameters = false;
  bool ops = false;
  bool json = false;          // one object in place of text
  std::string schedule = {};  // of a pipeline: "-" draws it, else a file that gets it as a table
  std::filesystem::path gantt = {};   // a file that gets it as an SVG image
  std::filesystem::path memory = {};  // a file that gets the arena as an SVG image
  std::string target = {};            // as explain() takes it
};

// `tessera explain`: prints what a run is, needs and sends on stdout; trains nothing. The config
// need not say what a run reads and writes.
void explain_command(const RunConfig& config, const ExplainOptions& options);

// `tessera generate`: prints the prompt and its continuation, or an answer alone, on stdout; of a
// file of prompts one JSON object each: "prompt", "text", "tokens", "finish".
void generate_command(const GenerateOptions& options);

}  // namespace tessera
