#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/config/run_config.h"
#include "tessera/data/packed_conversations.h"
#include "tessera/data/sequence_source.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// The run's tokenizer, with its marks: loaded from tokenizer.path, or trained on the data files and
// saved there when it does not exist and tokenizer.train_vocab says so; none where tokenizer.path
// is empty and all data are tokens. Errors: kInvalidConfig where there is neither and text needs
// it, or where it has more entries than a model has ids (`vocab`) that starts from no weights. Says
// so where it has fewer.
std::optional<Tokenizer> run_tokenizer(const RunConfig& config, std::int64_t vocab);

// `tokenizer` with the marks that tokenizer.bos and tokenizer.eos name. Errors: kInvalidConfig.
Tokenizer with_configured_marks(const Tokenizer& tokenizer, const RunConfig& config);

// `config` with the marks of its tokenizer written out: so a checkpoint holds them, wherever the
// files lie then that named them.
RunConfig with_marks_of(const Tokenizer& tokenizer, RunConfig config);

// A tokenizer for a model of `vocab` ids, the last of which may have no token. One that has more
// entries is taken, with a warning, as Tokenizer::within() them. Errors: kInvalidData where what
// begins or ends a text is one of the others, and as Tokenizer::load().
Tokenizer load_tokenizer(const std::filesystem::path& path, std::int64_t vocab);

struct RunSequences {
  SequenceSource train;
  std::vector<double> weights;               // of each part of `train`
  std::optional<SequenceSource> validation;  // where the config keeps data for it
};

// The data as sequences of ids below `vocab`, or those of the tokenizer where there is one: a part
// for each source. Errors: those of the files, with the source.
RunSequences run_sequences(const RunConfig& config,
                           const std::optional<Tokenizer>& tokenizer,
                           std::int64_t vocab);

// Says how conversations lie in sequences, and how many are cut; nothing where there are none.
// Errors: kInvalidData where no label counts.
void log_packing(const Packing& packing, const SequenceOptions& options);

}  // namespace tessera
