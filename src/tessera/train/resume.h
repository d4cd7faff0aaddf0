#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/config/run_config.h"

namespace tessera {

// The checkpoint that a user names: find_checkpoint(). Errors: kInvalidConfig where there is none,
// which say what to do with Hugging Face weights.
std::filesystem::path require_checkpoint(const std::filesystem::path& path);

// That `checkpoint` is of a model that a family of this program builds, and not of one that a
// program of its own does, which trains by this library. Errors: kInvalidConfig naming its family.
void require_known_model(const std::filesystem::path& checkpoint, const CheckpointMeta& meta);

// The checksum of a tokenizer.json by which a checkpoint knows it. Errors: kInvalidData.
std::string tokenizer_checksum(const std::filesystem::path& tokenizer);

// Where the copy of a run's tokenizer lies.
std::filesystem::path tokenizer_copy(const std::filesystem::path& run_dir);

// The tokenizer.json that goes with a checkpoint: its own, which is the run directory's where both
// are the same, the copy in the run directory where it has none, or else `configured`.
std::filesystem::path checkpoint_tokenizer(const std::filesystem::path& checkpoint,
                                           const std::filesystem::path& configured);

// That `tokenizer` is the one of `checkpoint`. A checkpoint without a checksum takes any.
// Errors: kInvalidData naming both files.
void require_tokenizer(const std::filesystem::path& tokenizer,
                       const std::filesystem::path& checkpoint,
                       const CheckpointMeta& meta);

// The keys that differ and for which a run that goes on behind `step` has other bits than one that
// was never stopped, each with both values: "run.threads (1, now 2)". train.steps is among them
// where it gave the steps so far other learning rates; what of the schedule follows from it, since
// nobody set it, is not. Nor are those that a checkpoint is refused for.
std::vector<std::string> changed_keys(const RunConfig& before,
                                      const RunConfig& now,
                                      std::int64_t step);

// "the learning rate goes from 5e-05 at step 20 to 0.00033 at step 21", where the two configs give
// `step` different ones and there are steps to come; else "".
std::string learning_rate_jump(const RunConfig& before, const RunConfig& now, std::int64_t step);

// All keys that differ, in the same form.
std::vector<std::string> all_changed_keys(const RunConfig& before, const RunConfig& now);

}  // namespace tessera
