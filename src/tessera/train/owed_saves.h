#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "tessera/config/run_config.h"
#include "tessera/train/run_saves.h"

namespace tessera {

// Which saves a run owes: those that are due after a step or by the clock, and those that somebody
// asked for, who gets word once there is one. A step that is not finite puts them off. All ranks
// have the same, except for the clock.
class OwedSaves {
 public:
  // The clock starts.
  explicit OwedSaves(const CheckpointSection& checkpoint);

  // `step` has ended.
  void note_step(std::int64_t step);

  // Any rank was asked for a save, or one is due by the clock.
  void note_asked(const RunSaves::Asked& any);

  // A save starts: nothing is owed but the word of it.
  void note_start();

  bool is_owed() const { return owes_save_; }

  // What was owed is saved already.
  void drop() { owes_save_ = false; }

  // Whether a save is due by this rank's clock.
  bool is_due() const;

  // Whether whoever asked for a save is now to be told of it: once.
  bool take_word(bool is_under_way);

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t every_;  // steps; 0: never
  double minutes_;      // 0: never
  Clock::time_point last_ = Clock::now();
  bool owes_save_ = false;
  bool owes_word_ = false;
};

}  // namespace tessera
