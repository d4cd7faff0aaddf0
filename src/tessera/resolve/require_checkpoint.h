#pragma once

#include <filesystem>
#include <string_view>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera {

// The checkpoint that a user names: find_checkpoint(). Errors: kInvalidConfig where there is none,
// which say what to do with Hugging Face weights.
std::filesystem::path require_checkpoint(const std::filesystem::path& path);

// body(the checkpoint that a user names), and again with the newest one then, where a run that
// trains there has removed it meanwhile. Errors: as require_checkpoint(), and those of body().
template <class Body>
decltype(auto) with_checkpoint(const std::filesystem::path& path, const Body& body) {
  constexpr int kTries = 5;
  for (int i = 1;; ++i) {
    const std::filesystem::path found = require_checkpoint(path);
    try {
      return body(found);
    } catch (const Error&) {
      std::error_code error;
      if (i == kTries || std::filesystem::exists(found, error)) {
        throw;
      }
    }
  }
}

// That `checkpoint` is of a model that a family of this program builds, and not of one that a
// program of its own does, which trains by this library. Errors: kInvalidConfig naming its family.
void require_known_model(const std::filesystem::path& checkpoint, const CheckpointMeta& meta);

// The same where the program computes the model `own` (ModelDescription::json), which may be one of
// its own too: what it builds it may also go on with.
void require_known_model(const std::filesystem::path& checkpoint,
                         const CheckpointMeta& meta,
                         std::string_view own);

// The same of the newest checkpoint in the directory of a run; a directory without one says
// nothing.
void require_known_run(const std::filesystem::path& run_dir);

}  // namespace tessera
