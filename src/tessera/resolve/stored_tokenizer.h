#pragma once

#include <filesystem>
#include <string>

#include "tessera/checkpoint/manifest.h"

namespace tessera {

// The checksum of a tokenizer.json by which a checkpoint knows it. Errors: kInvalidData.
std::string tokenizer_checksum(const std::filesystem::path& tokenizer);

// Where the copy of a run's tokenizer lies.
std::filesystem::path tokenizer_copy(const std::filesystem::path& run_dir);

// The tokenizer.json that goes with a checkpoint: its own, which is the run directory's where both
// are the same, the copy in the run directory where it has none, or else `configured`.
std::filesystem::path checkpoint_tokenizer(const std::filesystem::path& checkpoint,
                                           const std::filesystem::path& configured);

// That the copy of the tokenizer in a checkpoint, where it has one, is as it was written. Errors:
// kInvalidData.
void require_own_tokenizer(const std::filesystem::path& checkpoint, const CheckpointMeta& meta);

// That `tokenizer` is the one of `checkpoint`. A checkpoint without a checksum takes any.
// Errors: kInvalidData naming both files.
void require_tokenizer(const std::filesystem::path& tokenizer,
                       const std::filesystem::path& checkpoint,
                       const CheckpointMeta& meta);

}  // namespace tessera
