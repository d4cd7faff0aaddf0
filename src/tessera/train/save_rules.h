#pragma once

#include <filesystem>
#include <string>

#include "tessera/config/run_config.h"

namespace tessera {

// The rules for a run's checkpoints, from its file; run_dir follows a directory that is moved.
struct SaveRules {
  std::filesystem::path run_dir;
  CheckpointSection keys;
  std::string resume_place;  // of checkpoint.resume, for errors

  // Where the checkpoints lie.
  std::filesystem::path directory() const { return run_dir / "checkpoints"; }

  bool resumes_newest() const { return keys.resume == "auto"; }

  // Whether the run goes on from an earlier checkpoint where the newest is damaged.
  bool falls_back() const { return keys.fall_back && resumes_newest(); }
};

}  // namespace tessera
