#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/tokenizer/text_marks.h"

namespace tessera {

// `tessera train`: trains, prints progress, writes metrics and checkpoints into config.run.dir.
void train_command(const RunConfig& config);

// Parts that `tessera explain` prints in place of its one screen.
struct ExplainOptions {
  bool program = false;  // by itself the text that parse_program() reads
  bool plan = false;     // by itself the text that parse_plan() reads
  bool parameters = false;
  bool ops = false;
  bool json = false;        // one object in place of text
  std::string target = {};  // as explain() takes it
};

// `tessera explain`: prints what a run is, needs and sends on stdout; trains nothing. The config
// need not say what a run reads and writes.
void explain_command(const RunConfig& config, const ExplainOptions& options);

struct GenerateOptions {
  std::filesystem::path checkpoint;  // a checkpoint, or a run directory (its newest checkpoint)
  std::string prompt = {};           // where there is no file
  std::filesystem::path prompt_file = {};   // of one prompt; "-": stdin; empty: none
  std::filesystem::path prompts_file = {};  // of many prompts; "-": stdin; empty: none
  std::filesystem::path output = {};        // gets their continuations; empty: stdout does
  bool chat = false;                        // prompts are what a user says, to be answered
  std::string system = {};                  // and this, what the system says before; empty: nothing
  std::int64_t batch = 8;                   // prompts at a time
  std::int64_t max_tokens = 64;
  std::int64_t context = 0;             // tokens of a whole text; 0: as in training
  double temperature = 0.8;             // 0 = always the likeliest token
  std::int64_t top_k = 0;               // 0 = every token
  double top_p = 1.0;                   // 1 = every token
  double min_p = 0.0;                   // 0 = every token
  double repetition_penalty = 1.0;      // 1 = none
  std::vector<std::string> stops = {};  // a continuation ends before the first of them
  std::optional<DType> dtype = {};      // of weights and caches; none: as the run was trained
  std::string device = {};              // as run.device; empty: TrainedModel::device
  std::uint64_t seed = 42;
  MarkNames marks = {};  // in place of the run's
  bool verbose = false;  // says how fast it was, on a terminal or not
};

// `tessera generate`: prints the prompt and its continuation, or an answer alone, on stdout; of a
// file of prompts one JSON object each: "prompt", "text", "tokens", "finish".
void generate_command(const GenerateOptions& options);

}  // namespace tessera
