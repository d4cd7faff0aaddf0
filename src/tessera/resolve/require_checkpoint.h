#pragma once

#include <filesystem>

#include "tessera/checkpoint/manifest.h"

namespace tessera {

// The checkpoint that a user names: find_checkpoint(). Errors: kInvalidConfig where there is none,
// which say what to do with Hugging Face weights.
std::filesystem::path require_checkpoint(const std::filesystem::path& path);

// That `checkpoint` is of a model that a family of this program builds, and not of one that a
// program of its own does, which trains by this library. Errors: kInvalidConfig naming its family.
void require_known_model(const std::filesystem::path& checkpoint, const CheckpointMeta& meta);

}  // namespace tessera
