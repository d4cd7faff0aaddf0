#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/launch/rank_control.h"
#include "tessera/train/kept_checkpoints.h"
#include "tessera/train/last_save.h"
#include "tessera/train/save_rules.h"
#include "tessera/train/shared_save.h"
#include "tessera/train/start_checkpoint.h"
#include "tessera/train/way_on.h"

namespace tessera {

// The checkpoints of a run, as each of its ranks has them: where it starts from, the save under
// way, and the last good one. All ranks call the same, at the same points. Errors: what the ranks'
// talk throws; kDeviceError where a checkpoint that training waits for could not be written.
class RunSaves {
 public:
  using How = SharedSave::How;

  // `options` are those of this rank's part; `warn` is told, on rank 0, what the run survives.
  RunSaves(RankControl& control,
           SaveRules rules,
           const SaverOptions& options,
           const std::function<void(const std::string&)>& warn);

  // Names this launch to all ranks, then does what load_start_checkpoint() does.
  std::optional<std::filesystem::path> load_start(const LoadCheckpoint& load);

  // What the run has: the state after `step`, which `checkpoint` holds unless it is the initial
  // one.
  void start_from(const std::optional<std::filesystem::path>& checkpoint, std::int64_t step);

  // Where the checkpoints lie.
  std::filesystem::path directory() const { return rules_.directory(); }

  // The run's directory has another name now.
  void move_to(const std::filesystem::path& run_dir);

  // Sets aside the checkpoints that lie after `step`: the steps to come replace them. Rank 0 alone.
  void leave_other_branch(std::int64_t step);

  // A file of this name and text goes into every checkpoint. While no save is under way.
  void put_beside(std::string name, std::string text) {
    save_.put_beside(std::move(name), std::move(text));
  }

  // Takes the memory for copies of these, which need no data yet.
  void reserve(std::span<const CheckpointTensor> tensors) { save_.reserve(tensors); }

  std::int64_t memory_bytes() const { return save_.memory_bytes(); }

  // Starts to save `tensors` as the state of `meta`, of which no save is under way.
  void start(const CheckpointMeta& meta, std::span<const CheckpointTensor> tensors, How how);

  // Waits for the save under way, if any, and makes a checkpoint of it. One that failed is
  // warned of, unless it was to be made now. Every earlier one stays.
  void end();

  // Removes all but the checkpoints that the run keeps, once after a new one and once after a
  // start. Only when the newest is known to be good: its last step may have ruined the weights,
  // which the next one shows (RunState::find_fault()).
  void prune();

  // Whether prune() would look for some, after `step`, which began with what the newest holds.
  bool may_prune_before(std::int64_t step) const { return step > last_.step && kept_.is_new(); }

  // As KeptCheckpoints has them.
  bool has_too_many() { return kept_.has_too_many(); }

  void note_validation(std::int64_t step, double loss) { kept_.note_validation(step, loss); }

  void link_best() const { kept_.link_best(); }

  // At the end of the run: waits until what is to be removed is gone, however long that takes. Not
  // `in_time`: leaves the rest to the next start.
  void end_removals(bool in_time);

  // After a failure, when there is nobody to agree with: what this rank writes in the background
  // comes to its end. Alone it makes a checkpoint of it; of several ranks' parts the next start
  // does.
  void end_alone();

  // After that: saves `last`, of which the rest is filled in here, unless it is saved already.
  LastState save_alone(LastSave last);

  // What a rank has been asked for, or any of them.
  struct Asked {
    bool stop = false;
    bool save = false;
    bool is_due = false;  // a save, by the clock
    bool moved = false;   // the run's directory
  };

  // What any rank has been asked for. Also ends a save that all ranks have written.
  Asked agree(const Asked& own);

  // Whether the state after `step` is saved, or being saved.
  bool has(std::int64_t step) const;

  bool is_under_way() const { return save_.is_under_way(); }

  // The last good checkpoint; none: the initial state.
  const std::optional<std::filesystem::path>& last() const { return last_.checkpoint; }

  // The step of that state.
  std::int64_t last_step() const { return last_.step; }

  // "the last good checkpoint is ..", for errors.
  std::string last_good() const { return last_.words(); }

  // `error`, by which a step failed, with what is left of the run, and how to go on from it where
  // the next start need not meet the same error.
  Error with_way_on(const Error& error, const LastState& state) const {
    return tessera::with_way_on(error, state, last_, rules_);
  }

 private:
  void settle(bool failed);

  RankControl& control_;
  SaveRules rules_;
  std::function<void(const std::string&)> warn_;
  SharedSave save_;
  KeptCheckpoints kept_;
  GoodState last_;
  std::int64_t refused_step_ = -1;  // whose save has failed while training waited for it
};

}  // namespace tessera
