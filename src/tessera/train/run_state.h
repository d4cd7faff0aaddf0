#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/communicator.h"
#include "tessera/launch/rank_control.h"
#include "tessera/runtime/executor.h"
#include "tessera/state/state_parts.h"
#include "tessera/state/training_state.h"
#include "tessera/train/divergence.h"
#include "tessera/train/moved_directory.h"
#include "tessera/train/rank_record.h"
#include "tessera/train/rank_trainer.h"
#include "tessera/train/run_saves.h"
#include "tessera/train/step_runner.h"
#include "tessera/train/way_on.h"

namespace tessera {

// The state of a run on one rank: where it starts, how far it is, and its checkpoints. All ranks
// call the same, at the same points, unless a comment says otherwise. Errors: as RunSaves.
class RunState {
 public:
  // `executor` runs the step's program. `last_step` is kept at the last step that ended, once that
  // is known. Borrows all of them.
  RunState(const RunSetup& setup,
           const World& world,
           RankControl& control,
           Executor& executor,
           RankRecord& record,
           std::optional<std::int64_t>& last_step);

  // Loads the checkpoint that the run goes on from, or makes its initial state.
  void start();

  // The facts of a checkpoint of it; the step is the last that ended.
  const CheckpointMeta& meta() const { return meta_; }

  RunSaves& saves() { return saves_; }

  // Takes the memory for copies of what is saved.
  void reserve();

  // A step has ended.
  void advance(const StepRunner::Result& step);

  // Warns where that step was not applied. Ends the run, saved, where too many steps were not
  // finite. Errors: kDiverged.
  void note_outcome(const StepRunner::Result& step);

  // Why a step that began with a state shows this one to be ruined, though nothing but an update
  // made it; empty: it is good to go on from. Loss and gradient are finite; the gradient is some,
  // since norms of what overflows are zero, and with them all before; the loss is not far beyond
  // that of the steps before; and the weights' squares can be added up in f32.
  std::string find_fault(const StepRunner::Shown& shown);

  // Whether the last step was finite.
  bool is_finite() const { return divergence_.is_over(); }

  // Starts to save the state, which is finite.
  void save(RunSaves::How how) { save(meta_, how); }

  // Saves the state that the last finite step left, unless a checkpoint holds it.
  void save_last();

  // Whether this rank sees that the run's directory moved.
  bool is_moved() const { return moved_.is_moved(); }

  // Ends the run: somebody has given its directory another name, and files from now on would lie in
  // two places, one of them another run's. The state is saved where the directory is now.
  [[noreturn]] void leave_moved_directory();

  // After a failure, when there is nobody to agree with: saves what this rank still has of the last
  // step that changed the state. As RunSaves::save_alone().
  LastState save_on_way_out(double patience_seconds);

 private:
  // A step that changed the state.
  struct Applied {
    std::int64_t step = 0;
    std::int64_t tokens_seen = 0;
  };

  void prune_before(const StepRunner::Shown& step);
  bool is_usual(double loss) const;
  CheckpointMeta applied_meta() const;
  void save_last(const CheckpointMeta& meta);
  void save(const CheckpointMeta& meta, RunSaves::How how);

  const RunSetup& setup_;
  const World& world_;
  RankControl& control_;
  Executor& executor_;
  RankRecord& record_;
  std::optional<std::int64_t>& last_step_;
  StateParts parts_;  // of all ranks
  StatePart part_;    // of this one
  RunSaves saves_;
  MovedDirectory moved_;
  CheckpointMeta meta_;
  Applied applied_;  // the last one
  Divergence divergence_;
  double usual_loss_ = 0;    // of the last step whose loss was not far beyond that of those before
  bool has_warned_ = false;  // that checkpoints stay
};

}  // namespace tessera
