#pragma once

#include <filesystem>
#include <optional>

#include "tessera/config/run_config.h"
#include "tessera/models/model_section.h"

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

}  // namespace tessera
