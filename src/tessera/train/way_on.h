#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "tessera/base/error.h"
#include "tessera/train/last_save.h"
#include "tessera/train/save_rules.h"

namespace tessera {

// What a run that fails says of its state, and of the way on from there.

// The last state of a run that is known to be saved.
struct GoodState {
  std::optional<std::filesystem::path> checkpoint = {};  // none: the initial state
  std::int64_t step = 0;

  // "the last good checkpoint is ..".
  std::string words() const;
};

// What has become of the state of a rank that fails.
struct LastState {
  bool is_saved = false;  // of all ranks
  std::string text = {};  // empty: there is nothing new to say
};

// After save_last_step(last), which returned the ranks whose parts are missing. `is_alone`: of one
// rank, whose save is a checkpoint.
LastState after_last_save(const LastSave& last,
                          const std::set<std::int64_t>& missing,
                          bool is_alone);

// `error`, by which a step failed, with what is left of the run, and how to go on from it where
// the next start need not meet the same error.
Error with_way_on(const Error& error,
                  const LastState& state,
                  const GoodState& good,
                  const SaveRules& rules);

}  // namespace tessera
