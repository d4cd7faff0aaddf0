#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tessera/config/run_config.h"

namespace tessera {

// What is looked at before a run takes its directory, memory or time.

// What is wrong with a run file that lies in the directory of another run than run.dir, as after a
// directory was renamed, for a warning; "" where nothing is.
std::string other_directory(const RunConfig& config);

// The checkpoint that a run goes on from; nothing where it starts. What is wrong with it is said
// where it is opened.
std::optional<std::filesystem::path> start_checkpoint(const RunConfig& config);

// The tokenizer of a run that goes on from a checkpoint and whose tokenizer.path is gone: the copy
// beside the checkpoint; tokenizer.path in all other cases. Errors: kInvalidConfig where there is
// no copy, since one that was trained now would be another.
std::string find_own_tokenizer(const RunConfig& config);

// That data.sequence_length is not more than the data can have, as far as their files' sizes say.
// Errors: kInvalidData.
void require_enough_bytes(const RunConfig& config);

}  // namespace tessera
