#include "tessera/train/rank_trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/config/config.h"
#include "tessera/data/batch_sampler.h"
#include "tessera/metrics/metrics_writer.h"
#include "tessera/optim/schedule.h"
#include "tessera/runtime/executor.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/train/adapters.h"
#include "tessera/train/companions.h"
#include "tessera/train/disk_space.h"
#include "tessera/train/input_rows.h"
#include "tessera/train/measure_peak.h"
#include "tessera/train/rank_backend.h"
#include "tessera/train/rank_control.h"
#include "tessera/train/rank_launch.h"
#include "tessera/train/resume.h"
#include "tessera/train/run_directory.h"
#include "tessera/train/run_memory.h"
#include "tessera/train/run_record.h"
#include "tessera/train/run_saves.h"
#include "tessera/train/same_collectives.h"
#include "tessera/train/same_data.h"
#include "tessera/train/session_log.h"
#include "tessera/train/start_weights.h"
#include "tessera/train/step_program.h"
#include "tessera/train/stop_signal.h"
#include "tessera/train/training_state.h"
#include "tessera/train/validator.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxNotFiniteInARow = 3;
// Of a launcher's grace, for what must come to its end before anything is written.
constexpr double kShareOfGrace = 0.3;
constexpr double kUsualMinutes = 15;  // between saves, where nothing says how often

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The sign of a NaN says nothing.
double unsigned_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

std::vector<SampledSource> sampled_sources(const RunSequences& sequences) {
  std::vector<SampledSource> sources;
  for (const std::int64_t count : sequences.train.part_sequences()) {
    sources.push_back({.num_sequences = count, .weight = sequences.weights[sources.size()]});
  }
  return sources;
}

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

RankBackend make_backend(const RunSetup& setup, World& world) {
  const RunConfig& config = setup.config;
  if (setup.hooks.make_device == nullptr) {
    RankBackend::Wrap wrap;
    if (setup.hooks.wrap_backend) {
      wrap = [&](std::unique_ptr<Backend> backend) {
        return setup.hooks.wrap_backend(world.rank(), std::move(backend));
      };
    }
    return {world, setup.layout.mesh, config, wrap};
  }
  return {world,
          setup.layout.mesh,
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
        model_(setup.model),
        program_(setup.programs.step),
        world_(world),
        last_step_(last_step),
        directory_(config_.run.dir),
        control_(world, config_.checkpoint.deadline_seconds),
        backend_(make_backend(setup, world)),
        arena_(allocate_arena(*backend_, setup.programs, config_, model_)),
        executor_(program_, *backend_, arena_, setup.programs.arena_bytes()),
        part_(state_part(setup.layout.mesh, world.rank(), setup.layout.dims())),
        saves_(control_,
               config_,
               {.rank = world.rank(),
                .num_ranks = world.size(),
                .copies = !arena_->has_mirror(),
                .threads = static_cast<int>(config_.run.threads)},
               [this](const std::string& message) { warn(message); }),
        sampler_({.seed = static_cast<std::uint64_t>(config_.run.seed),
                  .sources = sampled_sources(setup.sequences),
                  .global_batch = config_.train.global_batch,
                  .shuffle = config_.data.shuffle}) {}

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
      throw with_way_on(error, save_on_way_out());
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
    if (saves_in_background(config_)) {
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

  // What is left, and how to go on from it where the next start need not meet the same error.
  Error with_way_on(const Error& error, const RunSaves::LastState& state) const {
    if (is_of_machine(error.code())) {
      return noted(error, saves_.way_on(state));
    }
    return state.text.empty() ? error : noted(error, state.text);
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
      return state_part(setup_.layout.mesh, rank, setup_.layout.dims());
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
    return std::min(deadline, std::clamp(deadline / 4, 1.0, 5.0) + 2 * step_seconds_);
  }

  void require_same(const Program& program) {
    control_.talk(
        [&](Communicator& group) { require_same_collectives(group, program, setup_.layout.mesh); });
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
    run_without_update();
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
    validator_.emplace(
        *validation_executor_, setup_.sequences.validation.value(), config_.validation, share());
  }

  // This rank's rows of every microbatch.
  BatchShare share() const {
    return {.rows = config_.train.microbatch,
            .num_data = setup_.layout.num_data(),
            .place = data_place(setup_.layout.mesh, world_.rank())};
  }

  void start_state() {
    const std::optional<std::filesystem::path> path =
        saves_.load_start([this](const std::filesystem::path& from) { load_checkpoint(from); });
    if (path.has_value()) {
      if (control_.leads()) {
        log_info(format("resuming from {} after step {}", path->string(), meta_.step));
        warn_of_changes(*path);
        warn_of_other_data(*path);
      }
    } else {
      control_.patiently("making its initial state", [&] { initialize(); });
    }
    saves_.start_from(path, meta_.step);
    meta_.model = model_.json;
    meta_.config = to_toml(config_);
    if (!config_.tokenizer.path.empty()) {
      meta_.tokenizer = tokenizer_checksum(config_.tokenizer.path);
      // So that a checkpoint is whole wherever it is moved. Any rank may write rank 0's part.
      saves_.put_beside(tokenizer_copy({}).string(), read_tokenizer_file(config_.tokenizer.path));
    }
    meta_.data = describe_sequences(setup_.sequences);
    last_step_ = meta_.step;
    applied_ = {.step = meta_.step, .tokens_seen = meta_.tokens_seen};
  }

  void load_checkpoint(const std::filesystem::path& path) {
    const CheckpointReader reader(
        path, {.verify = Verify::kOnLoad, .rank = world_.rank(), .num_ranks = world_.size()});
    require_same_adapters(path, reader.meta(), model_);
    reader.require_model(model_.json, model_tensors(setup_.parameters, config_.optimizer.moments));
    if (!config_.tokenizer.path.empty()) {
      require_tokenizer(config_.tokenizer.path, path, reader.meta());
    }
    load_state(executor_, setup_.parameters, reader, part_, static_cast<int>(config_.run.threads));
    meta_ = reader.meta();
    TESSERA_REQUIRE(meta_.seed == static_cast<std::uint64_t>(config_.run.seed),
                    ErrorCode::kInvalidConfig,
                    "{} was made with run.seed = {}, found run.seed = {}",
                    path.string(),
                    meta_.seed,
                    config_.run.seed);
  }

  void initialize() {
    initialize_state(
        executor_, setup_.parameters, static_cast<std::uint64_t>(config_.run.seed), part_);
    if (!config_.model.weights.empty()) {
      start_from_weights();
    }
    meta_.seed = static_cast<std::uint64_t>(config_.run.seed);
  }

  void start_from_weights() {
    const auto weights =
        open_start_weights(config_, {.rank = world_.rank(), .num_ranks = world_.size()});
    load_weights(executor_, setup_.parameters, *weights, part_);
    if (control_.leads()) {
      log_start_weights(config_);
    }
  }

  // `checkpoint` is the one that meta_ was read from.
  void warn_of_changes(const std::filesystem::path& checkpoint) const {
    try {
      const RunConfig before = parse_run_config(meta_.config, "the checkpoint's config");
      std::string changed;
      for (const std::string& key : changed_keys(before, config_, meta_.step)) {
        changed += (changed.empty() ? "" : ", ") + key;
      }
      if (!changed.empty()) {
        log_warning(format(
            "not bit by bit the run that was never stopped, since these keys differ from {}: {}",
            checkpoint.string(),
            changed));
      }
      if (const std::string jump = learning_rate_jump(before, config_, meta_.step); !jump.empty()) {
        log_warning(jump);
      }
    } catch (const Error& error) {
      // A build with other keys made it; its state is good all the same.
      log_warning(
          format("cannot tell which keys differ from {}: {}", checkpoint.string(), error.what()));
    }
  }

  // As warn_of_changes(). Files of the same names may have other texts.
  void warn_of_other_data(const std::filesystem::path& checkpoint) const {
    const std::string now = describe_sequences(setup_.sequences);
    if (meta_.data.empty() || meta_.data == now) {
      return;
    }
    log_warning(format("these are not the data that {} was trained on: found {}; it had {}",
                       checkpoint.string(),
                       now,
                       meta_.data));
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
        open_record();
        warn_of_full_disk();
      }
    });
    last_save_ = Clock::now();
    rehearse();
    if (owes_validation) {
      make_up_validation();
    }
  }

  void warn_of_full_disk() const {
    std::int64_t bytes = 0;
    for (const CheckpointTensor& tensor :
         model_tensors(setup_.parameters, config_.optimizer.moments)) {
      bytes += static_cast<std::int64_t>(saved_bytes(tensor));
    }
    const std::string shortage =
        disk_shortage(directory_,
                      {.checkpoint_bytes = bytes,
                       .keep = config_.checkpoint.keep,
                       .keeps_best = validator_ && config_.checkpoint.keep_best,
                       .present = saves_.count()});
    if (!shortage.empty()) {
      log_warning(shortage);
    }
  }

  void open_record() {
    const ParameterCounts parameters = count_parameters(setup_.parameters);
    const double flop_per_token =
        training_flop_per_token(model_, parameters, config_.data.sequence_length);
    const std::string validation =
        validator_ ? describe_validation(setup_.sequences, config_.validation.sequences) : "";
    const std::int64_t since = validated_alike_since(read_sessions(directory_), validation);
    record_ = std::make_unique<RunRecord>(config_,
                                          RunRecord::Model{.parameters = parameters.all,
                                                           .flop_per_token = flop_per_token,
                                                           .validation = validation},
                                          meta_.step);
    if (saves_.last()) {
      record_->make_up(*saves_.last(), meta_.step);
    }
    if (validator_ && config_.checkpoint.keep_best) {
      note_validations(since);
    }
  }

  // Of the steps before this start, so that the best one is known without a file of its own. Losses
  // of other data say nothing of it.
  void note_validations(std::int64_t since) {
    bool leaves_some_out = false;
    for_each_validation(config_, [&](std::int64_t step, double loss) {
      if (step > since || since == 0) {
        saves_.note_validation(step, loss);
      } else {
        leaves_some_out = leaves_some_out || std::isfinite(loss);
      }
    });
    if (leaves_some_out && since >= meta_.step) {
      warn(
          "the data for validation are others than before: the best checkpoint is chosen anew, by "
          "losses from now on; what the run was trained on before may be among them");
    }
    saves_.link_best();
  }

  TrainResult loop() {
    const bool owes_validation = agree_on_owed_validation();
    if (meta_.step >= config_.train.steps && !owes_validation) {
      if (control_.leads()) {
        log_info(
            format("nothing to do: the run is at step {} of {}", meta_.step, config_.train.steps));
      }
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
          config_.run.device == "cpu") {
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
    if (!owes_save_ || !not_finite_.empty()) {
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
    if (not_finite_.empty()) {
      save_last(meta_);
      // After a signal the next start removes what is too much.
      if (!result.interrupted && saves_.has_too_many() && is_finite()) {
        saves_.prune();
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

  // Whether the state that the run ends with is good: its last step may have ruined it. A step that
  // changes nothing shows it, where no validation has.
  bool is_finite() {
    if (finite_step_ == meta_.step) {
      return true;
    }
    run_without_update();
    const bool finite = std::isfinite(executor_.output_scalar("loss"));
    if (!finite) {
      warn(
          format("the weights after step {} are not finite: the last step has ruined them; all "
                 "checkpoints stay, and --checkpoint.resume={} goes on from the one before",
                 meta_.step,
                 saves_.before(saves_.last_step()).value_or("none").string()));
    }
    return finite;
  }

  void run_without_update() {
    load_batch(meta_.step + 1);
    for (const char* const name : {"seed", "learning_rate", "apply"}) {
      executor_.set_scalar(name, 0.0F);
    }
    executor_.set_scalar("update_number", 1.0F);
    executor_.run_step();
  }

  // Writes this rank's rows of every microbatch; returns the labels that count on all ranks.
  std::int64_t load_batch(std::int64_t step) {
    const std::vector<std::int64_t> batch = sampler_.batch(step);
    for (std::int64_t m = 0; m < program_.num_microbatches; ++m) {
      std::int64_t row = 0;
      for (const std::int64_t sequence : share_of(batch, share(), m)) {
        load_row(executor_, setup_.sequences.train, sequence, row++, m);
      }
    }
    std::int64_t valid = 0;
    for (const std::int64_t sequence : batch) {
      valid += setup_.sequences.train.num_valid_labels(sequence);
    }
    return valid;
  }

  StepMetrics run_step() {
    const Clock::time_point start = Clock::now();
    const std::int64_t step = meta_.step + 1;
    if (setup_.hooks.before_step) {
      setup_.hooks.before_step(world_.rank(), step);
    }
    const std::int64_t valid = load_batch(step);
    num_labels_ = valid;
    const double lr =
        learning_rate(config_.schedule, config_.optimizer.lr, config_.train.steps, step);
    executor_.set_scalar("seed",
                         valid > 0 ? static_cast<float>(1.0 / static_cast<double>(valid)) : 0.0F);
    executor_.set_scalar("learning_rate", static_cast<float>(lr));
    executor_.set_scalar("update_number", static_cast<float>(meta_.applied_steps + 1));
    executor_.set_scalar("apply", valid > 0 ? 1.0F : 0.0F);
    const Traffic sent_before = backend_.sent();
    // A short step ends, and is saved, before the launcher kills.
    executor_.give_up_where(grace_ && step_seconds_ > kShareOfGrace * *grace_
                                ? +[] { return seconds_from_launcher().has_value(); }
                                : nullptr);
    executor_.run_step();
    was_applied_ = executor_.output_scalar("applied") != 0.0F;
    Traffic sent = backend_.sent();
    add(sent, sent_before, -1);

    const std::int64_t tokens = config_.train.global_batch * config_.data.sequence_length;
    const double seconds = seconds_since(start);
    step_seconds_ = seconds;
    meta_.step = step;
    meta_.tokens_seen += tokens;
    if (was_applied_) {
      ++meta_.applied_steps;
      applied_ = {.step = meta_.step, .tokens_seen = meta_.tokens_seen};
    }
    return {.step = step,
            .loss = unsigned_nan(double{executor_.output_scalar("loss")} /
                                 static_cast<double>(std::max<std::int64_t>(valid, 1))),
            .grad_norm = unsigned_nan(double{executor_.output_scalar("grad_norm")}),
            .lr = lr,
            .tokens = meta_.tokens_seen,
            .step_seconds = seconds,
            .tokens_per_second = static_cast<double>(tokens) / seconds,
            .memory_bytes = memory_bytes(),
            .comm_bytes = by_level(sent, setup_.layout.mesh)};
  }

  // As run_memory() says it before the run.
  std::int64_t memory_bytes() const {
    return RunMemory{.categories = {},
                     .arena = setup_.programs.arena_bytes(),
                     .checkpoint_copy = saves_.memory_bytes(),
                     .on_device = config_.run.device == "cuda"}
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

  // A step that is not finite changed nothing; several in a row will not mend themselves.
  void note_applied(const StepMetrics& step) {
    if (was_applied_) {
      not_finite_.clear();
      saves_.prune_before(meta_.step);
      return;
    }
    if (num_labels_ == 0) {
      warn(format("step {} is not applied: none of its labels counts ({})",
                  step.step,
                  config_.data.mask_boundary
                      ? "data.mask_boundary"
                      : "conversations whose answers lie behind data.sequence_length"));
      return;
    }
    not_finite_.push_back(step.step);
    warn(format(
        "step {} is not applied: loss {}, gradient norm {}", step.step, step.loss, step.grad_norm));
    if (not_finite_.size() >= kMaxNotFiniteInARow) {
      stop_diverged();
    }
  }

  void warn(const std::string& message) {
    if (record_) {
      record_->warn(message);
    }
  }

  // The state before these steps is saved, though the step that made it may have ruined it.
  [[noreturn]] void stop_diverged() {
    save_applied();
    fail(ErrorCode::kDiverged,
         "steps {} to {} were not finite: training has diverged. Try a lower optimizer.lr, a "
         "longer schedule.warmup or a smaller optimizer.clip. {}",
         not_finite_.front(),
         not_finite_.back(),
         states_before_divergence());
  }

  std::string states_before_divergence() const {
    const std::optional<std::filesystem::path>& last = saves_.last();
    if (!last) {
      return "They began with the initial state: there is no checkpoint";
    }
    const std::string began = format("They began with {}, which may be ruined", last->string());
    const auto before = saves_.before(saves_.last_step());
    return before ? format("{}; --checkpoint.resume={} goes on from the checkpoint before it",
                           began,
                           before->string())
                  : format("{}; there is no checkpoint before it", began);
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
      not_finite_.empty() ? save_last(meta_) : save_applied();
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
  const ModelDescription& model_;
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
  BatchSampler sampler_;
  std::unique_ptr<RunRecord> record_;  // on rank 0, from the first step on
  std::optional<StopSignal> stop_;     // where the process takes signals
  CheckpointMeta meta_;
  std::optional<double> grace_ = launcher_grace();
  bool in_steps_ = false;                    // from where there is something to lose
  std::optional<StepMetrics> unwritten_;     // the last step's, until its line is in the metrics
  bool has_moved_ = false;                   // the run's directory, which is known by now
  std::optional<std::int64_t> finite_step_;  // whose state a validation has shown to be
  Clock::time_point last_save_ = Clock::now();
  bool owes_save_ = false;                // since a step that was not finite, or a signal
  bool owes_word_ = false;                // of that save, to whoever asked for it
  bool left_validation_ = false;          // of the last step: to stop
  bool was_applied_ = false;              // the last step
  double step_seconds_ = 0;               // of the last step
  std::int64_t num_labels_ = 0;           // of the last step, those that count
  Applied applied_;                       // the last step that changed the state
  std::vector<std::int64_t> not_finite_;  // steps since then whose loss or gradient was not
  std::optional<double> peak_flop_per_second_;
};

}  // namespace

TrainResult train_rank(const RunSetup& setup,
                       World& world,
                       std::optional<std::int64_t>& last_step) {
  return RankTrainer(setup, world, last_step).run();
}

}  // namespace tessera
