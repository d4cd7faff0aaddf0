#include "tessera/train/rank_trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/comm/texts.h"
#include "tessera/config/config.h"
#include "tessera/data/batch_sampler.h"
#include "tessera/metrics/metrics_writer.h"
#include "tessera/metrics/moving_mean.h"
#include "tessera/metrics/progress.h"
#include "tessera/metrics/tensorboard_writer.h"
#include "tessera/optim/schedule.h"
#include "tessera/report/metrics_table.h"
#include "tessera/runtime/executor.h"
#include "tessera/train/adapters.h"
#include "tessera/train/companions.h"
#include "tessera/train/hugging_face.h"
#include "tessera/train/input_rows.h"
#include "tessera/train/measure_peak.h"
#include "tessera/train/rank_backend.h"
#include "tessera/train/rank_launch.h"
#include "tessera/train/resume.h"
#include "tessera/train/run_directory.h"
#include "tessera/train/run_memory.h"
#include "tessera/train/same_collectives.h"
#include "tessera/train/same_data.h"
#include "tessera/train/session_log.h"
#include "tessera/train/step_program.h"
#include "tessera/train/stop_signal.h"
#include "tessera/train/training_state.h"
#include "tessera/train/validator.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxNotFiniteInARow = 3;
constexpr std::size_t kSmoothedSteps = 10;

// Seconds since 1970.
double wall_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
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
    return {world, setup.layout.mesh, config};
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
        control_(control_group(world)),
        backend_(make_backend(setup, world)),
        arena_(allocate_arena(*backend_, setup.programs, config_, model_)),
        executor_(program_, *backend_, arena_, setup.programs.arena_bytes()),
        part_(state_part(setup.layout.mesh, world.rank(), setup.layout.dims())),
        saver_({.rank = world.rank(),
                .num_ranks = world.size(),
                .copies = !arena_->has_mirror(),
                .threads = static_cast<int>(config_.run.threads)}),
        sampler_({.seed = static_cast<std::uint64_t>(config_.run.seed),
                  .sources = sampled_sources(setup.sequences),
                  .global_batch = config_.train.global_batch,
                  .shuffle = config_.data.shuffle}) {}

  TrainResult run() {
    try {
      return train();
    } catch (const std::exception& error) {
      finish_save_alone();
      // Before what other ranks may look at or wait for goes.
      backend_->abort(error.what());
      throw;
    }
  }

 private:
  TrainResult train() {
    require_same(program_);
    settle_products(ProductChoices::kKnown);
    prepare_validation();
    start_state();
    with_context(
        [&] { return when_; },
        [&] { require_same_data(*control_, describe_data(setup_.sequences, meta_.tokenizer)); });
    if (saves_in_background(config_)) {
      saver_.reserve(saved_tensors(program_, setup_.parameters, part_));
    }
    if (leads()) {
      write_file_atomic(directory_ / "config.toml", to_toml(config_));
      keep_tokenizer(directory_, config_.tokenizer.path, meta_.tokenizer);
      keep_companions(config_, directory_, meta_.tokenizer);
    }
    return loop();
  }

  // Whether this rank keeps the run's files and speaks for all.
  bool leads() const { return world_.rank() == 0; }

  // What every rank says, on every rank.
  std::vector<std::string> from_all(const std::string& text) {
    return with_context([&] { return when_; }, [&] { return gather_texts(*control_, text); });
  }

  // What rank 0 says, on every rank.
  std::string from_leader(const std::string& text) { return from_all(text)[0]; }

  std::string last_good_checkpoint() const {
    return format("the last good checkpoint is {}",
                  saved_ ? saved_->string() : "the initial state");
  }

  // What is left of a run whose step failed.
  std::string way_on() const {
    if (!saved_) {
      return "there is no checkpoint yet: the same command begins again";
    }
    const bool is_named =
        config_.checkpoint.resume != "auto" && saved_->parent_path() == checkpoints();
    return format("{}: the same command{} goes on from there",
                  last_good_checkpoint(),
                  is_named ? " with --checkpoint.resume=auto" : "");
  }

  // Behind a failure: a rank alone still makes a checkpoint of the save under way. Several would
  // have to agree: the next start does it, where all have written theirs.
  void finish_save_alone() {
    if (world_.size() > 1 || saver_.wait() != SaveStatus::kWritten) {
      return;
    }
    try {
      saver_.finish();
      saved_step_ = saving_.step;
      saved_ = saving_.path;
    } catch (const Error& error) {
      log_warning(error.what());
    }
  }

  // Runs what a device or another rank may fail in; such an error then says way_on().
  template <class Body>
  decltype(auto) with_way_on(const Body& body) {
    try {
      return body();
    } catch (const Error& error) {
      if (!is_of_machine(error.code())) {
        throw;
      }
      finish_save_alone();
      throw noted(error, way_on());
    }
  }

  void require_same(const Program& program) {
    with_context([&] { return when_; },
                 [&] { require_same_collectives(*control_, program, setup_.layout.mesh); });
  }

  void settle_products(ProductChoices which) {
    backend_.settle_products(
        which, leads(), [this](const std::string& text) { return from_all(text); });
  }

  // Ranks that each time their products do so in a step that changes no state, so that all that
  // counts is computed alike.
  void rehearse() {
    if (!backend_.settles_products() || meta_.step >= config_.train.steps) {
      return;
    }
    load_batch(meta_.step + 1);
    for (const char* const name : {"seed", "learning_rate", "apply"}) {
      executor_.set_scalar(name, 0.0F);
    }
    executor_.set_scalar("update_number", 1.0F);
    executor_.run_step();
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

  // What the ranks tell each other between two steps; each word is true where any rank says so.
  struct Said {
    bool stop = false;
    bool writing = false;  // its part of a checkpoint, in the background
    bool failed = false;   // to write it
  };

  Said exchange(bool stop, SaveStatus save) {
    std::optional<Unhurried> patience;
    if (save != SaveStatus::kIdle && saving_.how == Saving::kNow) {
      patience.emplace();  // others may still be writing
    }
    std::array<std::int64_t, 3> flags = {
        stop, save == SaveStatus::kWriting, save == SaveStatus::kFailed};
    const Elements elements = {.dtype = DType::kI64,
                               .data = reinterpret_cast<std::byte*>(flags.data()),
                               .count = std::int64_t{flags.size()}};
    with_context([&] { return when_; },
                 [&] { control_->all_reduce(Fold::kMax, elements, elements); });
    return {.stop = flags[0] != 0, .writing = flags[1] != 0, .failed = flags[2] != 0};
  }

  std::filesystem::path checkpoints() const { return directory_ / "checkpoints"; }

  std::optional<std::filesystem::path> resume_from() const {
    auto newest = find_newest_checkpoint(checkpoints());
    if (config_.checkpoint.resume == "none") {
      TESSERA_REQUIRE(!newest,
                      ErrorCode::kInvalidConfig,
                      "checkpoint.resume = \"none\", but {} exists: choose another run.dir, remove "
                      "it, or resume",
                      newest.value_or("").string());
      return std::nullopt;
    }
    if (config_.checkpoint.resume == "auto") {
      return newest;
    }
    // What is no checkpoint is reported when it is opened.
    const std::filesystem::path named = config_.checkpoint.resume;
    return find_checkpoint(named).value_or(named);
  }

  void start_state() {
    if (leads() && config_.checkpoint.resume == "auto") {
      for (const std::filesystem::path& path : finish_interrupted_saves(checkpoints())) {
        log_info(format("{} was written when the run was interrupted, and is now a checkpoint",
                        path.string()));
      }
    }
    // Rank 0 alone looks: others might look at another time.
    const std::string found =
        from_leader(leads() ? resume_from().value_or(std::filesystem::path()).string() : "");
    const auto path = found.empty() ? std::nullopt : std::optional<std::filesystem::path>(found);
    if (path.has_value()) {
      const CheckpointReader reader(
          *path, {.verify = Verify::kOnLoad, .rank = world_.rank(), .num_ranks = world_.size()});
      require_same_adapters(*path, reader.meta(), model_);
      reader.require_model(model_.json,
                           model_tensors(setup_.parameters, config_.optimizer.moments));
      require_tokenizer(config_.tokenizer.path, *path, reader.meta());
      load_state(
          executor_, setup_.parameters, reader, part_, static_cast<int>(config_.run.threads));
      meta_ = reader.meta();
      TESSERA_REQUIRE(meta_.seed == static_cast<std::uint64_t>(config_.run.seed),
                      ErrorCode::kInvalidConfig,
                      "{} was made with run.seed = {}, found run.seed = {}",
                      path->string(),
                      meta_.seed,
                      config_.run.seed);
      if (leads()) {
        log_info(format("resuming from {} after step {}", path->string(), meta_.step));
        warn_of_changes(*path);
      }
    } else {
      initialize_state(
          executor_, setup_.parameters, static_cast<std::uint64_t>(config_.run.seed), part_);
      if (!config_.model.weights.empty()) {
        start_from_weights();
      }
      meta_.seed = static_cast<std::uint64_t>(config_.run.seed);
    }
    saved_ = path;
    meta_.model = model_.json;
    meta_.config = to_toml(config_);
    meta_.tokenizer = tokenizer_checksum(config_.tokenizer.path);
    saved_step_ = meta_.step;
    last_step_ = meta_.step;
    applied_ = {.step = meta_.step, .tokens_seen = meta_.tokens_seen};
  }

  void start_from_weights() {
    const HuggingFaceModel source = read_hugging_face_model(config_.model.weights);
    require_same_model(config_, source);
    load_weights(executor_,
                 setup_.parameters,
                 HuggingFaceWeights(config_.model.weights, config_.model),
                 part_);
    if (leads()) {
      log_info(format("starting from the weights of {}", config_.model.weights));
    }
  }

  // `checkpoint` is the one that meta_ was read from.
  void warn_of_changes(const std::filesystem::path& checkpoint) const {
    try {
      const RunConfig before = parse_run_config(meta_.config, "the checkpoint's config");
      std::string changed;
      for (const std::string& key : changed_keys(before, config_)) {
        changed += (changed.empty() ? "" : ", ") + key;
      }
      if (!changed.empty()) {
        log_warning(format(
            "not bit by bit the run that was never stopped, since these keys differ from {}: {}",
            checkpoint.string(),
            changed));
      }
    } catch (const Error& error) {
      // A build with other keys made it; its state is good all the same.
      log_warning(
          format("cannot tell which keys differ from {}: {}", checkpoint.string(), error.what()));
    }
  }

  // The steps to come replace those that the run directory has after this one.
  void leave_other_branch() {
    remove_interrupted_saves(checkpoints());
    for (const std::filesystem::path& path : set_aside_checkpoints(checkpoints(), meta_.step)) {
      log_info(format("set aside as {}: the run goes on from step {}", path.string(), meta_.step));
    }
  }

  void open_metrics() {
    metrics_ = std::make_unique<MetricsWriter>(directory_ / "metrics.jsonl", meta_.step);
    cut_event_files(directory_, meta_.step);
    if (config_.log.tensorboard) {
      events_ = std::make_unique<TensorBoardWriter>(directory_, meta_.step, wall_time());
    }
    read_validation_losses();
    log_session_start(directory_,
                      {.step = meta_.step, .parameters = count_parameters(setup_.parameters).all});
  }

  // Of the steps before this start, so that the best checkpoint is known without a file of its own.
  void read_validation_losses() {
    if (!validator_ || !config_.checkpoint.keep_best) {
      return;
    }
    const MetricsTable metrics = read_metrics(directory_ / "metrics.jsonl", BrokenLines::kSkip);
    const std::span<const double> losses = metrics.column("validation_loss");
    for (std::size_t i = 0; i < losses.size(); ++i) {
      validation_losses_[metrics.steps[i]] = losses[i];
    }
    link_best();
  }

  void write_metrics(const StepMetrics& step) {
    metrics_->write(step);
    if (events_) {
      events_->write(step, wall_time());
    }
  }

  void log_end(const TrainResult& result) const {
    if (leads()) {
      log_session_end(directory_, {.step = result.step, .stopped = result.interrupted});
    }
  }

  // What comes before the first step of this start.
  void begin(bool owes_validation) {
    when_ = "between two steps";
    if (setup_.takes_signals) {
      stop_.emplace();
    }
    if (leads()) {
      leave_other_branch();
      open_metrics();
      progress_ = std::make_unique<Progress>(ProgressOptions{.plain_every = config_.log.every});
    }
    with_way_on([&] { rehearse(); });
    if (owes_validation) {
      with_way_on([&] { make_up_validation(); });
    }
  }

  TrainResult loop() {
    const bool owes_validation = agree_on_owed_validation();
    if (meta_.step >= config_.train.steps && !owes_validation) {
      if (leads()) {
        log_info(
            format("nothing to do: the run is at step {} of {}", meta_.step, config_.train.steps));
      }
      return {.step = meta_.step, .checkpoint = saved_};
    }
    begin(owes_validation);
    TrainResult result{.step = meta_.step};
    while (meta_.step < config_.train.steps &&
           !with_way_on([&] { return agreed_to_stop(wants_to_stop()); })) {
      const StepMetrics step = with_way_on([&] { return train_and_validate(); });
      result.step = step.step;
      result.loss = step.loss;
      if (leads()) {
        with_context([&] { return last_good_checkpoint(); }, [&] { write_metrics(step); });
      }
      note_applied(step);
      if (config_.checkpoint.every > 0 && step.step % config_.checkpoint.every == 0) {
        save(meta_, config_.checkpoint.async ? Saving::kBackground : Saving::kNow);
      }
      if (!peak_flop_per_second_ && meta_.step < config_.train.steps &&
          config_.run.device == "cpu") {
        // Not before the first step, which it would keep waiting; by all ranks at once, since they
        // share the machine. Its products are too small to say anything of a GPU.
        peak_flop_per_second_ =
            measure_peak(*backend_, config_.train.dtype) * static_cast<double>(world_.size());
      }
    }
    if (progress_) {
      progress_->finish();
    }
    result.interrupted = meta_.step < config_.train.steps || left_validation_;
    end_save();
    if (meta_.step > saved_step_) {
      save(meta_, Saving::kNow);
      end_save();
    }
    result.checkpoint = saved_;
    log_end(result);
    return result;
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
    executor_.run_step();
    was_applied_ = executor_.output_scalar("applied") != 0.0F;
    Traffic sent = backend_.sent();
    add(sent, sent_before, -1);

    const std::int64_t tokens = config_.train.global_batch * config_.data.sequence_length;
    const double seconds = seconds_since(start);
    meta_.step = step;
    meta_.tokens_seen += tokens;
    return {.step = step,
            .loss = double{executor_.output_scalar("loss")} /
                    static_cast<double>(std::max<std::int64_t>(valid, 1)),
            .grad_norm = double{executor_.output_scalar("grad_norm")},
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
                     .checkpoint_copy = saver_.memory_bytes(),
                     .on_device = config_.run.device == "cuda"}
        .total();
  }

  // A step, and the validation where one is due after it.
  StepMetrics train_and_validate() {
    StepMetrics step = run_step();
    last_step_ = step.step;
    if (leads()) {
      show(step);
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
      if (leads()) {
        progress_->show_activity(format("validation {}/{}", done, total));
      }
      return !agreed_to_stop(wants_to_stop());
    });
    left_validation_ = !loss;
    if (!loss) {
      return loss;
    }
    validation_losses_[meta_.step] = *loss;
    if (leads()) {
      progress_->clear();
      log_info(format("step {}: validation loss {:.4f}", meta_.step, *loss));
    }
    return loss;
  }

  // Whether the run was stopped in the validation of the step that it goes on from.
  bool agree_on_owed_validation() {
    if (!is_validated(meta_.step)) {
      return false;
    }
    bool owes = false;
    const std::filesystem::path path = directory_ / "metrics.jsonl";
    if (leads() && std::filesystem::exists(path)) {
      const MetricsTable metrics = read_metrics(path, BrokenLines::kSkip);
      const auto line = std::ranges::find(metrics.steps, meta_.step);
      const std::span<const double> losses = metrics.column("validation_loss");
      owes = line != metrics.steps.end() &&
             (losses.empty() ||
              std::isnan(losses[static_cast<std::size_t>(line - metrics.steps.begin())]));
    }
    return !from_leader(owes ? "owes" : "").empty();
  }

  void make_up_validation() {
    if (leads()) {
      log_info(format("validating step {}, in whose validation the run was stopped", meta_.step));
    }
    const std::optional<double> loss = validate();
    if (loss && leads()) {
      metrics_->add_validation(meta_.step, *loss);
      if (events_) {
        events_->write_validation(meta_.step, *loss, wall_time());
      }
      link_best();
    }
  }

  // A step that is not finite changed nothing; several in a row will not mend themselves.
  void note_applied(const StepMetrics& step) {
    if (was_applied_) {
      ++meta_.applied_steps;
      applied_ = {.step = meta_.step, .tokens_seen = meta_.tokens_seen};
      not_finite_.clear();
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
    if (leads()) {
      progress_->clear();
      log_warning(message);
    }
  }

  // Pruning might take the checkpoint that is good in truth, so that none is done here.
  [[noreturn]] void stop_diverged() {
    end_save();
    const std::optional<std::filesystem::path> before = saved_;
    if (saved_step_ < applied_.step) {
      CheckpointMeta meta = meta_;
      meta.step = applied_.step;
      meta.tokens_seen = applied_.tokens_seen;
      save(meta, Saving::kNow);
      end_save(Prune::kNo);
    }
    fail(ErrorCode::kDiverged,
         "steps {} to {} were not finite: training has diverged. Try a lower optimizer.lr, a "
         "longer schedule.warmup or a smaller optimizer.clip; {}{}",
         not_finite_.front(),
         not_finite_.back(),
         last_good_checkpoint(),
         before && before != saved_ ? format(", the one before it {}", before->string()) : "");
  }

  void show(const StepMetrics& step) {
    const double seconds = step_seconds_.add(step.step_seconds);
    const double tokens_per_second =
        static_cast<double>(config_.train.global_batch * config_.data.sequence_length) / seconds;
    const double flop_per_second =
        tokens_per_second * training_flop_per_token(model_,
                                                    count_parameters(setup_.parameters),
                                                    config_.data.sequence_length);
    progress_->update(
        {.step = step.step,
         .num_steps = config_.train.steps,
         .loss = step.loss,
         .grad_norm = step.grad_norm,
         .tokens_per_second = tokens_per_second,
         .flop_per_second = flop_per_second,
         .share_of_peak = peak_flop_per_second_
                              ? std::optional(flop_per_second / *peak_flop_per_second_)
                              : std::nullopt,
         .memory_bytes = step.memory_bytes,
         .seconds_left = seconds * static_cast<double>(config_.train.steps - step.step)});
  }

  enum class Saving { kBackground, kNow };
  enum class Prune { kYes, kNo };

  bool wants_to_stop() const { return stop_ && stop_->requested(); }

  // Whether any rank wants to stop. Also ends a save that all ranks have written.
  bool agreed_to_stop(bool stop) {
    const Said said = exchange(stop, saver_.status());
    if (saver_.status() != SaveStatus::kIdle && !said.writing) {
      settle(said.failed, Prune::kYes);
    }
    return said.stop;
  }

  // Starts to save the state as that of `meta`.
  void save(const CheckpointMeta& meta, Saving how) {
    const Unhurried patience;
    end_save();
    if (progress_) {
      progress_->clear();
    }
    saving_ = {
        .path = checkpoint_directory(checkpoints(), meta.step), .step = meta.step, .how = how};
    const auto tensors =
        with_way_on([&] { return state_tensors(executor_, setup_.parameters, part_); });
    if (how == Saving::kNow) {
      saver_.write(saving_.path, meta, tensors);
    } else {
      saver_.start(saving_.path, meta, tensors);
    }
  }

  // Waits for the save under way, if any.
  void end_save(Prune prune = Prune::kYes) {
    if (saver_.status() == SaveStatus::kIdle) {
      return;
    }
    const Unhurried patience;
    settle(exchange(false, saver_.wait()).failed, prune);
  }

  // Ends a save that no rank writes any more: in a checkpoint, or in nothing. Every earlier one
  // stays, so that training goes on without one that was made in the background.
  void settle(bool failed, Prune prune) {
    const Unhurried patience;
    std::string reason;
    if (failed) {
      const bool own = saver_.status() == SaveStatus::kFailed;
      for (const std::string& text : from_all(own ? saver_.error().what() : "")) {
        reason = reason.empty() ? text : reason;
      }
      saver_.abandon();
    } else {
      reason = published();
    }
    if (reason.empty()) {
      saved_step_ = saving_.step;
      saved_ = saving_.path;
      if (leads() && prune == Prune::kYes) {
        link_best();
        prune_checkpoints(checkpoints(), static_cast<int>(config_.checkpoint.keep), saving_.path);
      }
      return;
    }
    if (saving_.how == Saving::kNow) {
      fail(ErrorCode::kDeviceError, "{}", reason);
    }
    warn(format(
        "there is no checkpoint of step {}: {}; {}", saving_.step, reason, last_good_checkpoint()));
  }

  // Not worth the run: the link is for people, all checkpoints are there without it.
  void link_best() {
    if (!validator_ || !config_.checkpoint.keep_best) {
      return;
    }
    try {
      link_best_checkpoint(checkpoints(), validation_losses_);
    } catch (const Error& error) {
      warn(error.what());
    }
  }

  // Why rank 0 could not publish what all ranks have written; empty where it could.
  std::string published() {
    std::string reason;
    try {
      saver_.finish();
    } catch (const Error& error) {
      reason = error.what();
    }
    return from_leader(reason);
  }

  struct SaveUnderWay {
    std::filesystem::path path;
    std::int64_t step = 0;
    Saving how = Saving::kNow;
  };

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
  std::unique_ptr<Communicator> control_;  // all ranks, between steps
  const char* when_ = "before the first step";
  RankBackend backend_;
  std::shared_ptr<Arena> arena_;  // of both programs
  Executor executor_;
  std::unique_ptr<Executor> validation_executor_;  // null where the run does not validate
  std::optional<Validator> validator_;             // as that
  StatePart part_;
  CheckpointSaver saver_;
  SaveUnderWay saving_;
  BatchSampler sampler_;
  std::unique_ptr<MetricsWriter> metrics_;     // on rank 0
  std::unique_ptr<TensorBoardWriter> events_;  // on rank 0, with log.tensorboard
  std::unique_ptr<Progress> progress_;         // on rank 0
  std::optional<StopSignal> stop_;             // where the process takes signals
  CheckpointMeta meta_;
  std::int64_t saved_step_ = 0;
  std::optional<std::filesystem::path> saved_;        // the checkpoint of saved_step_; none: fresh
  std::map<std::int64_t, double> validation_losses_;  // by step
  bool left_validation_ = false;                      // of the last step: to stop
  bool was_applied_ = false;                          // the last step
  std::int64_t num_labels_ = 0;                       // of the last step, those that count
  Applied applied_;                                   // the last step that changed the state
  std::vector<std::int64_t> not_finite_;  // steps since then whose loss or gradient was not
  MovingMean step_seconds_{kSmoothedSteps};
  std::optional<double> peak_flop_per_second_;
};

}  // namespace

TrainResult train_rank(const RunSetup& setup,
                       World& world,
                       std::optional<std::int64_t>& last_step) {
  return RankTrainer(setup, world, last_step).run();
}

}  // namespace tessera
