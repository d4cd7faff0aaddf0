#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/data/sequence_source.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// The run's tokenizer: loaded from tokenizer.path, or trained on the data files and saved there
// when it does not exist and tokenizer.train_vocab says so. Errors: kInvalidConfig where there is
// neither, or where it has not the model's `vocab` entries.
Tokenizer run_tokenizer(const RunConfig& config, std::int64_t vocab);

// A tokenizer.json for a model of `vocab` entries. Errors: kInvalidConfig where it has others, and
// as Tokenizer::load().
Tokenizer load_tokenizer(const std::filesystem::path& path, std::int64_t vocab);

struct RunSequences {
  SequenceSource train;
  std::vector<double> weights;               // of each part of `train`
  std::optional<SequenceSource> validation;  // where the config keeps data for it
};

// The data as sequences: a part for each source. Errors: those of the files, with the source.
RunSequences run_sequences(const RunConfig& config, const Tokenizer& tokenizer);

}  // namespace tessera
