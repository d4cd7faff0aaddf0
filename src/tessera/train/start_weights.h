#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "tessera/config/run_config.h"
#include "tessera/models/model_section.h"
#include "tessera/train/weight_source.h"

namespace tessera {

// What model.weights may name: a directory in Hugging Face's form, a checkpoint, or a run directory
// (its newest checkpoint), of which the weights alone are taken.

// The checkpoint that `path` means; nothing where it is a directory in Hugging Face's form. Errors:
// kInvalidConfig where it is neither.
std::optional<std::filesystem::path> weights_checkpoint(const std::filesystem::path& path);

// The model of the weights at `path`, as a resolved section. Errors: kInvalidConfig where there are
// none; kInvalidData naming the file, or what a checkpoint has that is no family's: a model of its
// own, adapters.
ModelSection weights_section(const std::filesystem::path& path);

// That the model of `config`, which is resolved, is the one of its weights, whose section is
// `weights`: padding of the vocabulary aside, and, where model.grow_vocab allows it, ids that the
// weights do not have. Errors: kInvalidConfig with both.
void require_same_model(const RunConfig& config, const ModelSection& weights);

// Which of the ranks opens them: each checks a part of a checkpoint's files.
struct WeightsReader {
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;
};

// The weights of model.weights for the model of `config`. Where that has more ids than they have,
// each new row of embedding and head is the mean of the rows that there are: for the head the
// prediction that is the safest before training (it takes no more from the known ids than an
// average one), and for the embedding an input like those that the layers know. Errors: as above,
// and of the files.
std::unique_ptr<const WeightSource> open_start_weights(const RunConfig& config,
                                                       const WeightsReader& reader = {});

// Says, once, what the run starts from, what is odd about it, and how many ids are new.
void log_start_weights(const RunConfig& config);

}  // namespace tessera
