#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "tessera/launch/rank_control.h"
#include "tessera/train/save_rules.h"

namespace tessera {

using LoadCheckpoint = std::function<void(const std::filesystem::path&)>;

// Loads the checkpoint that a run starts from, as checkpoint.resume says, and returns its path;
// none: the initial state. All ranks call it together. Saves that an interruption left are finished
// first. With checkpoint.fall_back one that is damaged is set aside, and load() is called for the
// newest that is whole. load() does not talk. Errors: kInvalidConfig; load()'s; what the ranks'
// talk throws.
std::optional<std::filesystem::path> load_start_checkpoint(RankControl& control,
                                                           const SaveRules& rules,
                                                           const LoadCheckpoint& load);

}  // namespace tessera
