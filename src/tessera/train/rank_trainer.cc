#include "tessera/train/rank_trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "tessera/base/elapsed.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/config/config.h"
#include "tessera/dataset/same_data.h"
#include "tessera/launch/rank_backend.h"
#include "tessera/launch/rank_control.h"
#include "tessera/launch/rank_launch.h"
#include "tessera/launch/run_directory.h"
#include "tessera/launch/same_collectives.h"
#include "tessera/launch/stop_signal.h"
#include "tessera/metrics/metrics_writer.h"
#include "tessera/resolve/run_memory.h"
#include "tessera/state/training_state.h"
#include "tessera/train/divergence.h"
#include "tessera/train/measure_peak.h"
#include "tessera/train/open_record.h"
#include "tessera/train/run_record.h"
#include "tessera/train/run_saves.h"
#include "tessera/train/start_state.h"
#include "tessera/train/step_runner.h"
#include "tessera/train/validator.h"
#include "tessera/weights/companions.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kUsualMinutes = 15;  // between saves, where nothing says how often

RankBackend make_backend(const RunSetup& setup, World& world) {
  const RunConfig& config = setup.config;
  if (setup.hooks.make_device == nullptr) {
    RankBackend::Wrap wrap;
    if (setup.hooks.wrap_backend) {
      wrap = [&](std::unique_ptr<Backend> backend) {
        return setup.hooks.wrap_backend(world.rank(), std::move(backend));
      };
    }
    return {world, setup.run.plan.layout.mesh, config, wrap};
  }
  return {world,
          setup.run.plan.layout.mesh,
          static_cast<int>(config.run.threads),
          setup.hooks.make_device(world.rank()),
          nullptr,
          world_options(config)};
}

class RankTrainer {
 public:
  RankTrainer(const RunSetup& setup, World& world, std::optional<std::int64_t>& last_step)
      : setup_(setup),
        config_(setup.config),
        program_(setup.programs.step),
        world_(world),
        last_step_(last_step),
        directory_(config_.run.dir),
        control_(world, config_.checkpoint.deadline_seconds),
        backend_(make_backend(setup, world)),
        arena_(allocate_arena(*backend_, setup.programs, setup.run)),
        executor_(program_, *backend_, arena_, setup.programs.arena_bytes()),
        part_(state_part(setup.run.plan.layout.mesh, world.rank(), setup.run.plan.layout.dims())),
        saves_(control_,
               config_,
               {.rank = world.rank(),
                .num_ranks = world.size(),
                .copies = !arena_->has_mirror(),
                .threads = static_cast<int>(config_.run.threads)},
               [this](const std::string& message) { warn(message); }),
        steps_(setup, world.rank(), backend_, executor_, grace_) {}

  TrainResult run() {
    try {
      return train();
    } catch (...) {
      const Error error = to_error(std::current_exception());
      // Before what other ranks may look at or wait for goes; they save what they have, too.
      backend_->abort(error.what());
      saves_.end_alone();
      if (!in_steps_ || error.code() == ErrorCode::kDiverged) {
        throw Error(error);
      }
      throw saves_.with_way_on(error, save_on_way_out());
    }
  }

 private:
  TrainResult train() {
    require_same(program_);
    settle_products(ProductChoices::kKnown);
    prepare_validation();
    start_state();
    control_.talk([&](Communicator& group) {
      require_same_data(group, describe_data(setup_.sequences, meta_.tokenizer));
    });
    if (setup_.run.saves_in_background) {
      saves_.reserve(saved_tensors(program_, setup_.parameters, part_));
    }
    control_.patiently("writing the run's config", [&] {
      if (!control_.leads()) {
        return;
      }
      write_file_atomic(directory_ / "config.toml", to_toml(config_));
      if (!config_.tokenizer.path.empty()) {
        keep_tokenizer(directory_, config_.tokenizer.path, meta_.tokenizer);
        keep_companions(config_, directory_, meta_.tokenizer);
      }
    });
    return loop();
  }

  // Whatever this rank still has of the last step that changed the state.
  RunSaves::LastState save_on_way_out() {
    if (record_ && unwritten_) {
      write_metrics(*unwritten_);
    }
    CheckpointMeta meta = meta_;
    meta.step = applied_.step;
    meta.tokens_seen = applied_.tokens_seen;
    const auto part_of = [this](std::int64_t rank) {
      return state_part(setup_.run.plan.layout.mesh, rank, setup_.run.plan.layout.dims());
    };
    return saves_.save_alone(
        {.meta = meta,
         .torn = executor_.states_are_whole()
                     ? ""
                     : format("the update of step {} had begun", meta_.step + 1),
         .metrics_line =
             unwritten_ && unwritten_->step == meta.step ? to_json(*unwritten_) : std::string(),
         .tensors_of =
             [&](std::int64_t rank) {
               return replica_tensors(executor_, setup_.parameters, part_, part_of(rank));
             },
         .has_states_of =
             [&](std::int64_t rank, std::int64_t other) {
               return has_states_of(program_, setup_.parameters, part_of(rank), part_of(other));
             },
         .patience_seconds = patience_on_way_out()});
  }

  // A rank that computes learns of the failure when it next waits for another one.
  double patience_on_way_out() const {
    if (const std::optional<double> left = seconds_from_launcher()) {
      return kShareOfGrace * *left;
    }
    const double deadline = world_options(config_).patience_seconds();
    return std::min(deadline, std::clamp(deadline / 4, 1.0, 5.0) + 2 * steps_.seconds());
  }

  void require_same(const Program& program) {
    control_.talk([&](Communicator& group) {
      require_same_collectives(group, program, setup_.run.plan.layout.mesh);
    });
  }

  void settle_products(ProductChoices which) {
    backend_.settle_products(which, control_.leads(), [this](const std::string& text) {
      return control_.from_all(text);
    });
  }

  // Ranks that each time their products do so in a step that changes no state, so that all that
  // counts is computed alike.
  void rehearse() {
    if (!backend_.settles_products() || meta_.step >= config_.train.steps) {
      return;
    }
    steps_.run_without_update(meta_.step + 1);
    settle_products(ProductChoices::kTimed);
  }

  void prepare_validation() {
    const std::optional<Program>& program = setup_.programs.validation;
    if (!program) {
      return;
    }
    require_same(*program);
    validation_executor_ =
        std::make_unique<Executor>(*program, *backend_, arena_, setup_.programs.arena_bytes());
    validator_.emplace(*validation_executor_,
                       setup_.sequences.validation.value(),
                       config_.validation,
                       batch_share(setup_, world_.rank()));
  }

  void start_state() {
    const RankState state = {
        .setup = setup_, .world = world_, .executor = executor_, .part = part_};
    const std::optional<std::filesystem::path> path = saves_.load_start(
        [&](const std::filesystem::path& from) { meta_ = load_checkpoint(state, from); });
    if (path.has_value()) {
      if (control_.leads()) {
        log_info(format("resuming from {} after step {}", path->string(), meta_.step));
        warn_of_changes(setup_, meta_, *path);
      }
    } else {
      control_.patiently("making its initial state",
                         [&] { meta_ = make_initial_state(state, control_.leads()); });
    }
    saves_.start_from(path, meta_.step);
    describe_run(setup_, meta_, saves_);
    last_step_ = meta_.step;
    applied_ = {.step = meta_.step, .tokens_seen = meta_.tokens_seen};
  }

  // What comes before the first step of this start.
  void begin(bool owes_validation) {
    control_.go_on("between two steps");
    in_steps_ = true;
    if (setup_.takes_signals) {
      stop_.emplace(StopSignal::kRepeats, grace_);
      if (const std::string words = stop_->how_to_stop(); control_.leads() && !words.empty()) {
        log_info(words);
      }
    }
    control_.patiently("opening the run's files", [&] {
      if (control_.leads()) {
        saves_.leave_other_branch(meta_.step);
        open_record(setup_, meta_, saves_, record_);
      }
    });
    last_save_ = Clock::now();
    rehearse();
    if (owes_validation) {
      make_up_validation();
    }
  }

  TrainResult loop() {
    const bool owes_validation = agree_on_owed_validation();
    if (meta_.step >= config_.train.steps && !owes_validation) {
      if (control_.leads()) {
        log_info(
            format("nothing to do: the run is at step {} of {}", meta_.step, config_.train.steps));
      }
      prune_at_end();
      saves_.end_removals(true);
      return {.step = meta_.step, .checkpoint = saves_.last()};
    }
    begin(owes_validation);
    TrainResult result{.step = meta_.step};
    while (meta_.step < config_.train.steps && !agreed_to_stop()) {
      if (meta_.step > 0) {
        save_owed();
      }
      const StepMetrics step = train_and_validate();
      result.step = step.step;
      result.loss = step.loss;
      keep(step);
      if (!peak_flop_per_second_ && meta_.step < config_.train.steps &&
          !setup_.run.target.is_device()) {
        // Not before the first step, which it would keep waiting; by all ranks at once, since they
        // share the machine. Its products are too small to say anything of a GPU.
        peak_flop_per_second_ =
            measure_peak(*backend_, config_.train.dtype) * static_cast<double>(world_.size());
      }
    }
    // A run of few steps may end before it looks again.
    if (saves_.agree({.moved = is_moved()}).moved) {
      leave_moved_directory();
    }
    end_session(result);
    return result;
  }

  // What is kept of a step: its line in the metrics, and a checkpoint where one is due. Of a step
  // that was not finite there is none: the next one that is makes up for it.
  void keep(const StepMetrics& step) {
    if (record_) {
      write_metrics(step);
    }
    note_applied(step);
    const std::int64_t every = config_.checkpoint.every;
    owes_save_ = owes_save_ || (every > 0 && step.step % every == 0);
    save_owed();
  }

  void write_metrics(const StepMetrics& step) {
    unwritten_.reset();
    with_context([&] { return saves_.last_good(); }, [&] { record_->write(step); });
  }

  void save_owed() {
    if (!owes_save_ || !divergence_.is_over()) {
      return;
    }
    owes_save_ = false;
    if (!saves_.has(meta_.step)) {
      save(meta_, config_.checkpoint.async ? RunSaves::How::kBackground : RunSaves::How::kNow);
    }
  }

  // Saves the state as that of `meta`, unless a checkpoint holds it.
  void save_last(const CheckpointMeta& meta) {
    saves_.end();
    if (meta.step > saves_.last_step()) {
      save(meta, RunSaves::How::kNow);
      saves_.end();
    }
  }

  // The same as that of the last step that changed it.
  void save_applied() {
    CheckpointMeta meta = meta_;
    meta.step = applied_.step;
    meta.tokens_seen = applied_.tokens_seen;
    save_last(meta);
  }

  void end_session(TrainResult& result) {
    if (record_) {
      record_->finish_progress();
    }
    result.interrupted = meta_.step < config_.train.steps || left_validation_;
    if (divergence_.is_over()) {
      save_last(meta_);
      // After a signal the next start removes what is too much.
      if (!result.interrupted) {
        prune_at_end();
      }
    } else {
      save_applied();
    }
    result.checkpoint = saves_.last();
    if (record_) {
      record_->end(result);
    }
    saves_.end_removals(!result.interrupted);
  }

  void prune_at_end() {
    if (saves_.has_too_many() && is_finite()) {
      saves_.prune();
    }
  }

  // Whether the state that the run ends with is good: its last step may have ruined it. A step that
  // changes nothing shows it, where no validation has.
  bool is_finite() {
    if (finite_step_ == meta_.step) {
      return true;
    }
    const bool finite = std::isfinite(steps_.run_without_update(meta_.step + 1));
    if (!finite) {
      warn(
          format("the weights after step {} are not finite: the last step has ruined them; all "
                 "checkpoints stay, and --checkpoint.resume={} goes on from the one before",
                 meta_.step,
                 saves_.before(saves_.last_step()).value_or("none").string()));
    }
    return finite;
  }

  StepMetrics run_step() {
    last_result_ = steps_.run(meta_);
    StepMetrics& metrics = last_result_.metrics;
    meta_.step = metrics.step;
    meta_.tokens_seen = metrics.tokens;
    if (last_result_.applied) {
      ++meta_.applied_steps;
      applied_ = {.step = meta_.step, .tokens_seen = meta_.tokens_seen};
    }
    metrics.memory_bytes = memory_bytes();
    return metrics;
  }

  // As run_memory() says it before the run.
  std::int64_t memory_bytes() const {
    return RunMemory{.categories = {},
                     .arena = setup_.programs.arena_bytes(),
                     .checkpoint_copy = saves_.memory_bytes(),
                     .on_device = setup_.run.target.is_device()}
        .total();
  }

  // A step, and the validation where one is due after it.
  StepMetrics train_and_validate() {
    StepMetrics step = run_step();
    last_step_ = step.step;
    unwritten_ = step;
    if (record_) {
      record_->show(step, peak_flop_per_second_);
    }
    if (is_validated(step.step)) {
      step.validation_loss = validate();
    }
    return step;
  }

  bool is_validated(std::int64_t step) const {
    return validator_ && step > 0 && step % config_.validation.every == 0;
  }

  // What the step left in the arena beside the states is lost. Nothing where the run is to stop:
  // who goes on from here makes up for it.
  std::optional<double> validate() {
    const std::optional<double> loss = validator_->loss([&](std::int64_t done, std::int64_t total) {
      if (record_) {
        record_->show_validation(done, total);
      }
      return !agreed_to_stop();
    });
    left_validation_ = !loss;
    if (!loss) {
      return loss;
    }
    saves_.note_validation(meta_.step, *loss);
    if (std::isfinite(*loss)) {
      finite_step_ = meta_.step;
    }
    if (record_) {
      record_->inform(format("step {}: validation loss {:.4f}", meta_.step, *loss));
    }
    return loss;
  }

  // Whether the run was stopped in the validation of the step that it goes on from.
  bool agree_on_owed_validation() {
    if (!is_validated(meta_.step)) {
      return false;
    }
    const bool owes = control_.leads() && lacks_validation(config_, meta_.step);
    return !control_.from_leader(owes ? "owes" : "").empty();
  }

  void make_up_validation() {
    if (record_) {
      record_->inform(
          format("validating step {}, in whose validation the run was stopped", meta_.step));
    }
    const std::optional<double> loss = validate();
    if (loss && record_) {
      record_->write_validation(meta_.step, *loss);
      saves_.link_best();
    }
  }

  void note_applied(const StepMetrics& step) {
    if (last_result_.applied) {
      divergence_.note_applied();
      saves_.prune_before(meta_.step);
      return;
    }
    if (last_result_.num_labels == 0) {
      warn(format("step {} is not applied: none of its labels counts ({})",
                  step.step,
                  config_.data.mask_boundary
                      ? "data.mask_boundary"
                      : "conversations whose answers lie behind data.sequence_length"));
      return;
    }
    divergence_.note_not_finite(step.step);
    warn(format(
        "step {} is not applied: loss {}, gradient norm {}", step.step, step.loss, step.grad_norm));
    if (divergence_.is_final()) {
      save_applied();
      divergence_.stop(saves_);
    }
  }

  void warn(const std::string& message) {
    if (record_) {
      record_->warn(message);
    } else if (control_.leads()) {
      log_warning(message);
    }
  }

  // Whether any rank was asked to stop. A save that one was asked for is owed from then on, and
  // told of once it is there.
  bool agreed_to_stop() {
    const bool was_asked_to_save = stop_ && stop_->take_save_request();
    const RunSaves::Asked any = saves_.agree({.stop = stop_ && stop_->requested(),
                                              .save = was_asked_to_save,
                                              .is_due = is_due_by_time(),
                                              .moved = is_moved()});
    if (any.moved) {
      leave_moved_directory();
    }
    if (owes_word_ && !owes_save_ && !saves_.is_under_way()) {
      owes_word_ = false;
      if (record_) {
        record_->inform(saves_.last_good());
      }
    }
    owes_save_ = owes_save_ || any.save || any.is_due;
    owes_word_ = owes_word_ || any.save;
    return any.stop;
  }

  // By rank 0's clock, so that all ranks save the same step.
  bool is_due_by_time() const {
    const double minutes = config_.checkpoint.every_minutes.value_or(
        config_.checkpoint.every == 0 ? kUsualMinutes : 0);
    return control_.leads() && minutes > 0 && !saves_.is_under_way() &&
           seconds_since(last_save_) >= 60 * minutes;
  }

  bool is_moved() const {
    return !has_moved_ && setup_.home != nullptr && !setup_.home->is_in_place();
  }

  // Somebody has given the run's directory another name: what would be written from now on would
  // lie in two places, one of them another run's. What there is is saved where it is now.
  [[noreturn]] void leave_moved_directory() {
    const std::string to =
        control_.from_leader(setup_.home == nullptr ? "" : setup_.home->place().string());
    has_moved_ = true;
    saves_.end();
    if (!to.empty()) {
      saves_.move_to(to);
      divergence_.is_over() ? save_last(meta_) : save_applied();
    }
    fail(ErrorCode::kInvalidConfig,
         "run.dir {} {} while the run was writing there: the run ends after step {}{}",
         directory_.string(),
         to.empty() ? "was removed" : format("was moved to {}", to),
         meta_.step,
         to.empty() ? ", which no checkpoint holds"
                    : format(", whose state is saved: --run.dir={} goes on from there", to));
  }

  // Starts to save the state as that of `meta`.
  void save(const CheckpointMeta& meta, RunSaves::How how) {
    const Unhurried patience;
    saves_.end();
    if (saves_.agree({.moved = is_moved()}).moved) {
      leave_moved_directory();
    }
    if (record_) {
      record_->clear_progress();
    }
    const auto tensors = state_tensors(executor_, setup_.parameters, part_);
    saves_.start(meta, tensors, how);
    last_save_ = Clock::now();
  }

  struct Applied {
    std::int64_t step = 0;
    std::int64_t tokens_seen = 0;
  };

  const RunSetup& setup_;
  const RunConfig& config_;
  const Program& program_;
  World& world_;
  std::optional<std::int64_t>& last_step_;
  std::filesystem::path directory_;
  RankControl control_;
  RankBackend backend_;
  std::shared_ptr<Arena> arena_;  // of both programs
  Executor executor_;
  std::unique_ptr<Executor> validation_executor_;  // null where the run does not validate
  std::optional<Validator> validator_;             // as that
  StatePart part_;
  RunSaves saves_;
  std::optional<double> grace_ = launcher_grace();
  StepRunner steps_;
  std::unique_ptr<RunRecord> record_;  // on rank 0, from the first step on
  std::optional<StopSignal> stop_;     // where the process takes signals
  CheckpointMeta meta_;
  bool in_steps_ = false;                    // from where there is something to lose
  std::optional<StepMetrics> unwritten_;     // the last step's, until its line is in the metrics
  bool has_moved_ = false;                   // the run's directory, which is known by now
  std::optional<std::int64_t> finite_step_;  // whose state a validation has shown to be
  Clock::time_point last_save_ = Clock::now();
  bool owes_save_ = false;        // since a step that was not finite, or a signal
  bool owes_word_ = false;        // of that save, to whoever asked for it
  bool left_validation_ = false;  // of the last step: to stop
  StepRunner::Result last_result_;
  Applied applied_;  // the last step that changed the state
  Divergence divergence_;
  std::optional<double> peak_flop_per_second_;
};

}  // namespace

TrainResult train_rank(const RunSetup& setup,
                       World& world,
                       std::optional<std::int64_t>& last_step) {
  return RankTrainer(setup, world, last_step).run();
}

}  // namespace tessera
