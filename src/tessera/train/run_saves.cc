#include "tessera/train/run_saves.h"

#include <array>
#include <exception>
#include <set>

#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/launch/stop_signal.h"

namespace tessera {
namespace {

// What the ranks tell each other; each word is true where any rank says so.
struct Said {
  RunSaves::Asked asked = {};
  bool writing = false;  // its part of a checkpoint, in the background
  bool failed = false;   // to write it
};

Said exchange(RankControl& control, const RunSaves::Asked& own, SaveStatus save) {
  std::array<std::int64_t, 6> flags = {own.stop,
                                       own.save,
                                       own.is_due,
                                       own.moved,
                                       save == SaveStatus::kWriting,
                                       save == SaveStatus::kFailed};
  control.take_largest(flags);
  return {.asked = {.stop = flags[0] != 0,
                    .save = flags[1] != 0,
                    .is_due = flags[2] != 0,
                    .moved = flags[3] != 0},
          .writing = flags[4] != 0,
          .failed = flags[5] != 0};
}

}  // namespace

RunSaves::RunSaves(RankControl& control,
                   SaveRules rules,
                   const SaverOptions& options,
                   const std::function<void(const std::string&)>& warn)
    : control_(control),
      rules_(std::move(rules)),
      warn_(warn),
      save_(control, options),
      kept_(control, rules_, warn) {
  save_.move_to(rules_.run_dir);
}

std::optional<std::filesystem::path> RunSaves::load_start(const LoadCheckpoint& load) {
  save_.name_launch();
  return load_start_checkpoint(control_, rules_, load);
}

void RunSaves::start_from(const std::optional<std::filesystem::path>& checkpoint,
                          std::int64_t step) {
  last_ = {.checkpoint = checkpoint, .step = step};
  // An interruption may have left more than the run keeps.
  kept_.note_new(checkpoint.has_value());
}

void RunSaves::move_to(const std::filesystem::path& run_dir) {
  rules_.run_dir = run_dir;
  save_.move_to(run_dir);
}

void RunSaves::leave_other_branch(std::int64_t step) {
  remove_interrupted_saves(directory(), save_.remover());
  for (const std::filesystem::path& path : set_aside_checkpoints(directory(), step)) {
    log_info(format("set aside as {}: the run goes on from step {}", path.string(), step));
  }
}

void RunSaves::start(const CheckpointMeta& meta,
                     std::span<const CheckpointTensor> tensors,
                     How how) {
  save_.start({.path = checkpoint_directory(directory(), meta.step), .step = meta.step, .how = how},
              meta,
              tensors);
  if (how != How::kBackground) {
    end();
  }
}

void RunSaves::end() {
  if (!is_under_way()) {
    return;
  }
  save_.wait();
  settle(exchange(control_, {}, save_.status()).failed);
}

void RunSaves::prune() {
  kept_.prune(last_.checkpoint.value_or(""), save_.remover());
}

void RunSaves::end_removals(bool in_time) {
  if (!in_time) {
    save_.remover().give_up();
    return;
  }
  control_.patiently("removing what the run does not keep", [&] { save_.remover().wait(); });
}

void RunSaves::end_alone() {
  const Unhurried patience;
  try {
    if (save_.end_alone()) {
      start_from(save_.under_way().path, save_.under_way().step);
    }
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

LastState RunSaves::save_alone(LastSave last) {
  const Unhurried patience;
  const std::int64_t step = last.meta.step;
  last.directory = checkpoint_directory(directory(), step);
  last.has_states = last.torn.empty();  // before a save under way has its say in `torn`
  save_.describe(last);
  if (!last.under_way) {
    // What the disk has just refused it refuses again.
    last.is_saved = step == 0 || has(step) || step == refused_step_;
  }
  try {
    const std::set<std::int64_t> missing = save_last_step(last);
    if (!last.is_saved && control_.is_alone()) {
      start_from(last.directory, step);
    }
    return after_last_save(last, missing, control_.is_alone());
  } catch (const std::exception& error) {
    return {.text = format("the state after step {} is not saved: {}", step, error.what())};
  }
}

RunSaves::Asked RunSaves::agree(const Asked& own) {
  const Said said = exchange(control_, own, save_.status());
  if (is_under_way() && !said.writing) {
    settle(said.failed);
  }
  return said.asked;
}

bool RunSaves::has(std::int64_t step) const {
  return is_under_way() ? save_.under_way().step == step : last_.checkpoint && last_.step == step;
}

// Ends a save that no rank writes any more: in a checkpoint, or in nothing.
void RunSaves::settle(bool failed) {
  const SharedSave::UnderWay& save = save_.under_way();
  const std::string reason = save_.end(failed);
  if (reason.empty()) {
    start_from(save.path, save.step);
    if (control_.leads()) {
      kept_.link_best();
    }
    return;
  }
  if (save.how == How::kNow) {
    refused_step_ = save.step;
    fail(ErrorCode::kDeviceError, "{}", reason);
  }
  if (control_.leads()) {
    warn_(format("there is no checkpoint of step {}: {}; {}", save.step, reason, last_good()));
  }
}

}  // namespace tessera
