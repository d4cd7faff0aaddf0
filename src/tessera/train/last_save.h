#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera {

// What a rank of a run that fails still saves: its part of the last step that ended. It talks to
// nobody, since others may be failing, too; what they have written it sees in the directory.
struct LastSave {
  std::filesystem::path directory = {};  // that the checkpoint is to have
  SaverOptions options = {};             // of this rank, with the name of the launch
  CheckpointMeta meta = {};              // of the state
  bool is_saved = false;                 // already
  bool under_way = false;  // this rank's part was being written when the run failed, and has ended
  std::string torn = {};   // why this rank has no part of it; empty: it has, or has the state
  bool has_states = true;  // in memory, so that it can write what other ranks do not
  std::string metrics_line =
      {};  // of the step, for the checkpoint that has rank 0's part from here
  // What the rank of this number saves, as far as this one has it; nothing where it has not.
  std::function<std::optional<std::vector<CheckpointTensor>>(std::int64_t rank)> tensors_of = {};
  // Whether a rank has all that another one saves.
  std::function<bool(std::int64_t rank, std::int64_t other)> has_states_of = {};
  // How long nothing may happen in the directory before the missing parts are given up.
  double patience_seconds = 1;
};

// Writes this rank's part and waits for those of the others: a launcher ends all processes when the
// first one ends. A part that does not come is written by the first rank that has the same states.
// A rank whose state is saved waits for those that may have ended the next step.
// Returns the ranks whose parts are missing then. A rank alone makes the checkpoint. Errors:
// kDeviceError where this rank's part cannot be written.
std::set<std::int64_t> save_last_step(const LastSave& save);

}  // namespace tessera
