#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/config/run_config.h"
#include "tessera/models/model.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// A checkpoint with all that its use takes.
struct TrainedModel {
  std::filesystem::path checkpoint;
  std::unique_ptr<const CheckpointReader> weights;  // checked as they are loaded
  RunConfig config;                                 // of the run that made it, resolved for a CPU
  std::string device;  // what it is used on where nobody names one: "auto" if it was made on a GPU
  ModelDescription model;
  std::optional<Tokenizer> tokenizer;  // none of a run on tokens that had none

  // For what reads or writes text. Errors: kInvalidConfig where there is none.
  const Tokenizer& text_tokenizer() const;
};

// `path` is a checkpoint, or a run directory (its newest checkpoint). Errors: kInvalidConfig where
// there is none; kInvalidData where it is damaged, or the tokenizer is not its own
// or missing.
TrainedModel open_trained_model(const std::filesystem::path& path);

}  // namespace tessera
