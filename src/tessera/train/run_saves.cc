#include "tessera/train/run_saves.h"

#include <array>
#include <exception>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/save_directory.h"
#include "tessera/comm/agreement.h"
#include "tessera/launch/stop_signal.h"
#include "tessera/resolve/require_checkpoint.h"
#include "tessera/train/run_record.h"

namespace tessera {
namespace {

// Whether the machine or another rank failed, not what the run was given.
bool is_of_machine(ErrorCode code) {
  return code == ErrorCode::kDeviceError || code == ErrorCode::kPeerFailure ||
         code == ErrorCode::kTimeout;
}

// `error` with a note. That of another rank gets it behind its message, which may have it from
// there: contexts say where this rank was.
Error noted(const Error& error, const std::string& note) {
  if (error.code() != ErrorCode::kPeerFailure) {
    return Error(error).add_context(note);
  }
  const bool is_said = error.message().find(note) != std::string::npos;
  Error failure(error.code(), error.message() + (is_said ? "" : "; " + note));
  for (const std::string& context : error.context()) {
    failure.add_context(context);
  }
  return failure;
}

}  // namespace

RunSaves::RunSaves(RankControl& control,
                   const RunConfig& config,
                   const SaverOptions& options,
                   std::function<void(const std::string&)> warn)
    : control_(control),
      config_(config),
      options_(options),
      run_dir_(config.run.dir),
      saver_(options),
      warn_(std::move(warn)) {
  move_to(run_dir_);
}

std::filesystem::path RunSaves::directory() const {
  return run_dir_ / "checkpoints";
}

std::optional<std::filesystem::path> RunSaves::configured_start() const {
  if (config_.checkpoint.resume == "auto") {
    return find_newest_name(directory());
  }
  if (config_.checkpoint.resume == "none") {
    const auto newest = find_newest_checkpoint(directory());
    TESSERA_REQUIRE(!newest,
                    ErrorCode::kInvalidConfig,
                    "checkpoint.resume = \"none\", but {} exists: choose another run.dir, remove "
                    "it, or resume",
                    newest.value_or("").string());
    return std::nullopt;
  }
  const std::filesystem::path named = config_.checkpoint.resume;
  return of_resume([&] { return find_checkpoint(named).value_or(named); });
}

// Rank 0 alone looks: others might look at another time.
std::filesystem::path RunSaves::find_start() {
  options_.launch = control_.from_leader(control_.leads() ? make_launch_name() : "");
  saver_.set_options(options_);
  std::string found;
  control_.patiently("finishing what an interrupted run has saved", [&] {
    if (!control_.leads()) {
      return;
    }
    // Whatever the run starts from: what would be left of another branch is set aside, not removed.
    for (const std::filesystem::path& path : finish_interrupted_saves(directory())) {
      log_info(format("{} was written when the run was interrupted, and is now a checkpoint",
                      path.string()));
    }
    found = configured_start().value_or(std::filesystem::path()).string();
  });
  found = control_.from_leader(found);
  if (found.empty() || config_.checkpoint.resume == "auto") {
    return found;
  }
  // What is no checkpoint all ranks refuse alike.
  return of_resume([&] { return require_checkpoint(found); });
}

std::optional<std::filesystem::path> RunSaves::load_start(const Load& load) {
  std::filesystem::path path = find_start();
  while (!path.empty()) {
    const Refusal refusal = try_load(path, load);
    if (refusal.first.empty()) {
      return path;
    }
    const std::filesystem::path next = fall_back(path);
    if (next == path) {  // it is whole, and not this run's
      if (refusal.own) {
        std::rethrow_exception(refusal.own);
      }
      fail(ErrorCode::kPeerFailure, "another rank refuses the checkpoint: {}", refusal.first);
    }
    path = next;
  }
  return std::nullopt;
}

RunSaves::Refusal RunSaves::try_load(const std::filesystem::path& path, const Load& load) {
  if (!falls_back()) {
    control_.patiently("loading the checkpoint", [&] { load(path); });
    return {};
  }
  Refusal result;
  std::string problem;
  control_.patiently("loading the checkpoint", [&] {
    try {
      load(path);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidData) {
        throw;
      }
      result.own = std::current_exception();
      problem = error.what();
    }
  });
  for (const std::string& text : control_.from_all(problem)) {
    result.first = result.first.empty() ? text : result.first;
  }
  return result;
}

bool RunSaves::falls_back() const {
  return config_.checkpoint.fall_back && config_.checkpoint.resume == "auto";
}

// Where the run goes on from in place of `refused`: that itself where every byte of it is as it was
// written, else the newest one before it of which that holds; what is damaged loses its name. All
// that rank 0 reads.
std::filesystem::path RunSaves::fall_back(const std::filesystem::path& refused) {
  std::string found;
  std::string error;
  control_.patiently("looking for a checkpoint that is whole", [&] {
    if (!control_.leads()) {
      return;
    }
    std::vector<std::filesystem::path> damaged;
    std::optional<std::filesystem::path> candidate = refused;
    for (; candidate; candidate = find_newest_name(directory(), checkpoint_step(*candidate))) {
      const std::string damage = find_damage(*candidate);
      if (damage.empty()) {
        break;
      }
      error += "; " + damage;
      damaged.push_back(*candidate);
    }
    // Without a whole one they keep their names: the next start is not to find nothing.
    if (!candidate) {
      return;
    }
    found = candidate->string();
    for (const std::filesystem::path& path : damaged) {
      log_warning(format("DAMAGED CHECKPOINT: {} is set aside as {}",
                         path.string(),
                         set_aside_damaged(path).string()));
    }
    if (!damaged.empty()) {
      log_warning(format("going on from {}, the newest that is whole{}", found, error));
    }
  });
  found = control_.from_leader(found);
  // Never a new start in silence, where a run has come far.
  TESSERA_REQUIRE(
      !found.empty(),
      ErrorCode::kInvalidData,
      "no checkpoint in {} is whole: to begin again, remove them or choose another run.dir{}",
      directory().string(),
      error);
  return found;
}

void RunSaves::start_from(const std::optional<std::filesystem::path>& checkpoint,
                          std::int64_t step) {
  last_ = checkpoint;
  last_step_ = step;
  // An interruption may have left more than the run keeps.
  is_new_ = checkpoint.has_value();
}

void RunSaves::move_to(const std::filesystem::path& run_dir) {
  run_dir_ = run_dir;
  options_.home = run_dir;
  options_.record = metrics_file(run_dir);
  saver_.set_options(options_);
}

void RunSaves::leave_other_branch(std::int64_t step) {
  remove_interrupted_saves(directory(), saver_.remover());
  for (const std::filesystem::path& path : set_aside_checkpoints(directory(), step)) {
    log_info(format("set aside as {}: the run goes on from step {}", path.string(), step));
  }
}

void RunSaves::start(const CheckpointMeta& meta,
                     std::span<const CheckpointTensor> tensors,
                     How how) {
  under_way_ = {
      .path = checkpoint_directory(directory(), meta.step), .step = meta.step, .how = how};
  if (how == How::kNow) {
    saver_.start_in_place(under_way_.path, meta, tensors);
    end();
  } else {
    saver_.start(under_way_.path, meta, tensors);
  }
}

void RunSaves::end() {
  if (saver_.status() == SaveStatus::kIdle) {
    return;
  }
  control_.patiently("writing its part of a checkpoint", [&] { saver_.wait(); });
  settle(exchange({}, saver_.status()).failed);
}

void RunSaves::prune() {
  if (is_new_ && control_.leads()) {
    warn_of([&] {
      prune_checkpoints(directory(),
                        static_cast<int>(config_.checkpoint.keep),
                        last_.value_or(""),
                        saver_.remover());
    });
  }
  is_new_ = false;
}

void RunSaves::end_removals(bool in_time) {
  if (!in_time) {
    saver_.remover().give_up();
    return;
  }
  control_.patiently("removing what the run does not keep", [&] { saver_.remover().wait(); });
}

std::int64_t RunSaves::count() const {
  return count_checkpoints(directory());
}

bool RunSaves::has_too_many() {
  const std::int64_t keep = config_.checkpoint.keep;
  bool too_many = false;
  if (control_.leads() && is_new_ && keep > 0) {
    warn_of([&] { too_many = count() > keep; });
  }
  return !control_.from_leader(too_many ? "too many" : "").empty();
}

void RunSaves::prune_before(std::int64_t step) {
  if (step > last_step_) {
    prune();
  }
}

std::optional<std::filesystem::path> RunSaves::before(std::int64_t step) const {
  return find_newest_checkpoint(directory(), step);
}

void RunSaves::end_alone() {
  const Unhurried patience;
  if (saver_.wait() != SaveStatus::kWritten || !control_.is_alone()) {
    return;
  }
  try {
    saver_.finish();
    start_from(under_way_.path, under_way_.step);
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

RunSaves::LastState RunSaves::save_alone(LastSave last) {
  const Unhurried patience;
  const std::int64_t step = last.meta.step;
  last.directory = checkpoint_directory(directory(), step);
  last.options = options_;
  last.options.copies = false;
  last.options.first_attempt = saver_.attempt(last.directory);
  last.has_states = last.torn.empty();
  if (is_under_way() && under_way_.step == step) {
    last.under_way = true;
    last.torn = saver_.status() == SaveStatus::kFailed ? saver_.error().what() : "";
  } else {
    // What the disk has just refused it refuses again.
    last.is_saved = step == 0 || has(step) || step == refused_step_;
  }
  try {
    const std::set<std::int64_t> missing = save_last_step(last);
    if (last.is_saved) {
      return {};
    }
    if (control_.is_alone()) {
      start_from(last.directory, step);
      return {.is_saved = true,
              .text = format("the state after step {} is saved as {}", step, last_->string())};
    }
    if (missing.empty()) {
      return {.is_saved = true,
              .text = format("all ranks have saved the state after step {}", step)};
    }
    return {.text = format("of the state after step {} the parts of these ranks are missing: {}{}",
                           step,
                           list_ranks(std::vector(missing.begin(), missing.end())),
                           last.torn.empty() ? "" : format("; on this one {}", last.torn))};
  } catch (const std::exception& error) {
    return {.text = format("the state after step {} is not saved: {}", step, error.what())};
  }
}

RunSaves::Asked RunSaves::agree(const Asked& own) {
  const Said said = exchange(own, saver_.status());
  if (is_under_way() && !said.writing) {
    settle(said.failed);
  }
  return said.asked;
}

bool RunSaves::has(std::int64_t step) const {
  return is_under_way() ? under_way_.step == step : last_ && last_step_ == step;
}

RunSaves::Said RunSaves::exchange(const Asked& own, SaveStatus save) {
  std::array<std::int64_t, 6> flags = {own.stop,
                                       own.save,
                                       own.is_due,
                                       own.moved,
                                       save == SaveStatus::kWriting,
                                       save == SaveStatus::kFailed};
  control_.take_largest(flags);
  return {.asked = {.stop = flags[0] != 0,
                    .save = flags[1] != 0,
                    .is_due = flags[2] != 0,
                    .moved = flags[3] != 0},
          .writing = flags[4] != 0,
          .failed = flags[5] != 0};
}

// Ends a save that no rank writes any more: in a checkpoint, or in nothing.
void RunSaves::settle(bool failed) {
  const std::string reason = failed ? failure() : published();
  if (reason.empty()) {
    start_from(under_way_.path, under_way_.step);
    if (control_.leads()) {
      link_best();
    }
    return;
  }
  if (under_way_.how == How::kNow) {
    refused_step_ = under_way_.step;
    fail(ErrorCode::kDeviceError, "{}", reason);
  }
  if (control_.leads()) {
    warn_(
        format("there is no checkpoint of step {}: {}; {}", under_way_.step, reason, last_good()));
  }
}

// Why the first rank that failed could not write its part of the save, which is given up.
std::string RunSaves::failure() {
  const bool own = saver_.status() == SaveStatus::kFailed;
  const std::string own_reason = own ? saver_.error().what() : "";
  // Before any rank may begin the next save.
  saver_.abandon();
  std::string reason;
  for (const std::string& text : control_.from_all(own_reason)) {
    reason = reason.empty() ? text : reason;
  }
  return reason;
}

// Why rank 0 could not publish what all ranks have written; empty where it could.
std::string RunSaves::published() {
  std::string reason;
  control_.patiently("giving a checkpoint its name", [&] {
    try {
      saver_.finish();
    } catch (const std::exception& error) {
      reason = error.what();
    }
  });
  return control_.from_leader(reason);
}

std::string RunSaves::last_good() const {
  return format("the last good checkpoint is {}", last_ ? last_->string() : "the initial state");
}

// Whether "auto", which finds what is newest, must be said.
std::string RunSaves::same_command(bool finds_newest) const {
  const bool is_named = config_.checkpoint.resume != "auto";
  return finds_newest && is_named ? "the same command with --checkpoint.resume=auto"
                                  : "the same command";
}

std::string RunSaves::way_on(const LastState& state) const {
  if (state.is_saved) {
    return format("{}: {} goes on from there", state.text, same_command(true));
  }
  const std::string before = state.text.empty() ? "" : state.text + "; ";
  // One may have been published that the ranks had no step left to hear of.
  try {
    const auto newest = find_newest_checkpoint(directory());
    if (newest && (!last_ || checkpoint_step(*newest).value_or(0) > last_step_)) {
      return format("{}the newest checkpoint is {}: {} goes on from there",
                    before,
                    newest->string(),
                    same_command(true));
    }
  } catch (const std::exception& error) {
    // The run's own error is what counts.
    return format("{}the run's checkpoints cannot be looked at: {}", before, error.what());
  }
  if (last_) {
    return format("{}{}: {} goes on from there",
                  before,
                  last_good(),
                  same_command(last_->parent_path() == directory()));
  }
  return before + "there is no checkpoint yet: the same command begins again";
}

// Not worth the run: the link is for people, all checkpoints are there without it.
void RunSaves::link_best() const {
  if (config_.validation.every == 0 || !config_.checkpoint.keep_best) {
    return;
  }
  warn_of([&] { link_best_checkpoint(directory(), validation_losses_); });
}

Error RunSaves::with_way_on(const Error& error, const LastState& state) const {
  if (is_of_machine(error.code())) {
    return noted(error, way_on(state));
  }
  return state.text.empty() ? error : noted(error, state.text);
}

}  // namespace tessera
