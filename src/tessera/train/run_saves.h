#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/config/run_config.h"
#include "tessera/launch/rank_control.h"
#include "tessera/train/last_save.h"

namespace tessera {

// The checkpoints of a run, as each of its ranks has them: where it starts from, the save under
// way, and the last good one. All ranks call the same, at the same points. Errors: what the ranks'
// talk throws; kDeviceError where a checkpoint that training waits for could not be written.
class RunSaves {
 public:
  enum class How { kBackground, kNow };
  // `options` are those of this rank's part; `warn` is told, on rank 0, what the run survives.
  RunSaves(RankControl& control,
           const RunConfig& config,
           const SaverOptions& options,
           std::function<void(const std::string&)> warn);

  // Loads the checkpoint that the run starts from, as checkpoint.resume says; none: the initial
  // state. Saves that an interruption left are finished first. With checkpoint.fall_back one that
  // is damaged is set aside, and load() is called for the newest that is whole. load() does not
  // talk. Errors: kInvalidConfig; load()'s.
  using Load = std::function<void(const std::filesystem::path&)>;
  std::optional<std::filesystem::path> load_start(const Load& load);

  // What the run has: the state after `step`, which `checkpoint` holds unless it is the initial
  // one.
  void start_from(const std::optional<std::filesystem::path>& checkpoint, std::int64_t step);

  // The run's directory has another name now.
  void move_to(const std::filesystem::path& run_dir);

  // Sets aside the checkpoints that lie after `step`: the steps to come replace them. Rank 0 alone.
  void leave_other_branch(std::int64_t step);

  // A file of this name and text goes into every checkpoint. While no save is under way.
  void put_beside(std::string name, std::string text) {
    options_.beside.insert_or_assign(std::move(name), std::move(text));
    saver_.set_options(options_);
  }

  // Takes the memory for copies of these, which need no data yet.
  void reserve(std::span<const CheckpointTensor> tensors) { saver_.reserve(tensors); }

  std::int64_t memory_bytes() const { return saver_.memory_bytes(); }

  // Starts to save `tensors` as the state of `meta`, of which no save is under way.
  void start(const CheckpointMeta& meta, std::span<const CheckpointTensor> tensors, How how);

  // Waits for the save under way, if any, and makes a checkpoint of it. One that was made in the
  // background and failed is warned of. Every earlier one stays.
  void end();

  // Removes all but the checkpoints that the run keeps, once after a new one and once after a
  // start. Only when the newest is known to be good: its last step may have ruined the weights,
  // which the next one shows.
  void prune();

  // Whether that would remove any.
  bool has_too_many();

  // At the end of the run: waits until what is to be removed is gone, however long that takes. Not
  // `in_time`: leaves the rest to the next start.
  void end_removals(bool in_time);

  // How many complete checkpoints the run has.
  std::int64_t count() const;

  // The same as prune(), `step` being one that was finite.
  void prune_before(std::int64_t step);

  // The newest checkpoint before that of `step`.
  std::optional<std::filesystem::path> before(std::int64_t step) const;

  // After a failure, when there is nobody to agree with: what this rank writes in the background
  // comes to its end. Alone it makes a checkpoint of it; of several ranks' parts the next start
  // does.
  void end_alone();

  // What has become of the state of a rank that fails.
  struct LastState {
    bool is_saved = false;  // of all ranks
    std::string text = {};  // empty: there is nothing new to say
  };

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

  bool is_under_way() const { return saver_.status() != SaveStatus::kIdle; }

  // The last good checkpoint; none: the initial state.
  const std::optional<std::filesystem::path>& last() const { return last_; }

  // The step of that state.
  std::int64_t last_step() const { return last_step_; }

  // "the last good checkpoint is ..", for errors.
  std::string last_good() const;

  // `error`, by which a step failed, with what is left of the run, and how to go on from it where
  // the next start need not meet the same error.
  Error with_way_on(const Error& error, const LastState& state) const;

  // The loss by which link_best() knows the best checkpoint.
  void note_validation(std::int64_t step, double loss) { validation_losses_[step] = loss; }

  // Links the best checkpoint, if the run keeps it. Rank 0 alone.
  void link_best() const;

 private:
  struct UnderWay {
    std::filesystem::path path;
    std::int64_t step = 0;
    How how = How::kNow;
  };

  // What the ranks tell each other; each word is true where any rank says so.
  struct Said {
    Asked asked = {};
    bool writing = false;  // its part of a checkpoint, in the background
    bool failed = false;   // to write it
  };

  std::filesystem::path directory() const;
  std::string way_on(const LastState& state) const;
  std::optional<std::filesystem::path> configured_start() const;
  std::filesystem::path find_start();

  // Why a checkpoint was not loaded.
  struct Refusal {
    std::exception_ptr own;  // null: other ranks' alone
    std::string first;       // the first rank's that refuses; empty: loaded
  };

  bool falls_back() const;
  Refusal try_load(const std::filesystem::path& path, const Load& load);
  std::filesystem::path fall_back(const std::filesystem::path& refused);

  // body(), whose errors say the place of checkpoint.resume.
  template <class Body>
  std::filesystem::path of_resume(const Body& body) const {
    return with_context([this] { return placed(config_, "checkpoint.resume"); }, body);
  }

  // body(), whose errors the run survives.
  template <class Body>
  void warn_of(const Body& body) const {
    try {
      body();
    } catch (const Error& error) {
      warn_(error.what());
    }
  }

  Said exchange(const Asked& own, SaveStatus save);
  std::string same_command(bool finds_newest) const;
  void settle(bool failed);
  std::string failure();
  std::string published();

  RankControl& control_;
  const RunConfig& config_;
  SaverOptions options_;
  std::filesystem::path run_dir_;
  CheckpointSaver saver_;
  std::function<void(const std::string&)> warn_;
  UnderWay under_way_;
  std::optional<std::filesystem::path> last_;
  std::int64_t last_step_ = 0;
  std::int64_t refused_step_ = -1;  // whose save has failed while training waited for it
  bool is_new_ = true;  // `last_`, since checkpoints were pruned, or what an earlier start left
  std::map<std::int64_t, double> validation_losses_;  // by step
};

}  // namespace tessera
