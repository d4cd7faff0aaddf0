#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tessera/config/run_config.h"

namespace tessera {

// `tessera train`: trains, prints progress, writes metrics and checkpoints into config.run.dir.
void train_command(const RunConfig& config);

// `tessera explain`: prints the program, its memory and its work on stdout; trains nothing.
void explain_command(const RunConfig& config);

struct GenerateOptions {
  std::filesystem::path checkpoint;  // a checkpoint, or a run directory (its newest checkpoint)
  std::string prompt;
  std::int64_t max_tokens = 64;
  double temperature = 0.8;  // 0 = always the likeliest token
  std::int64_t top_k = 0;    // 0 = every token
  double top_p = 1.0;        // 1 = every token
  std::uint64_t seed = 42;
};

// `tessera generate`: prints the prompt and its continuation on stdout.
void generate_command(const GenerateOptions& options);

}  // namespace tessera
