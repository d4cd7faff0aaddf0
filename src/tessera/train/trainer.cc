#include "tessera/train/trainer.h"

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/config/config.h"
#include "tessera/data/batch_sampler.h"
#include "tessera/metrics/metrics_writer.h"
#include "tessera/metrics/moving_mean.h"
#include "tessera/metrics/progress.h"
#include "tessera/optim/schedule.h"
#include "tessera/runtime/executor.h"
#include "tessera/train/exit_record.h"
#include "tessera/train/generate.h"
#include "tessera/train/measure_peak.h"
#include "tessera/train/resolve.h"
#include "tessera/train/resume.h"
#include "tessera/train/run_data.h"
#include "tessera/train/step_program.h"
#include "tessera/train/stop_signal.h"
#include "tessera/train/training_state.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxNotFiniteInARow = 3;
constexpr std::size_t kSmoothedSteps = 10;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::span<std::int32_t> ints(std::span<std::byte> bytes) {
  return {reinterpret_cast<std::int32_t*>(bytes.data()), bytes.size() / sizeof(std::int32_t)};
}

FileLock open_directory(const std::filesystem::path& directory) {
  TESSERA_REQUIRE(!directory.empty(),
                  ErrorCode::kInvalidConfig,
                  "run.dir is empty, expected a directory for the run's files");
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot create run.dir {}: {}",
                  directory.string(),
                  error.message());
  FileLock lock(directory / "lock");
  std::filesystem::remove(exit_record_path(directory), error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot remove {}: {}",
                  exit_record_path(directory).string(),
                  error.message());
  return lock;
}

class Trainer {
 public:
  // `last_step` is kept at the last step that ended, once that is known.
  Trainer(const RunConfig& config,
          const ModelDescription& model,
          std::optional<std::int64_t>& last_step)
      : config_(config),
        model_(model),
        last_step_(last_step),
        directory_(config.run.dir),
        backend_(make_cpu_backend(static_cast<int>(config.run.threads))),
        query_([this](const Op& op, std::span<const View> in, std::span<const View> out) {
          return backend_->workspace_bytes(op, in, out);
        }),
        program_(compile_step(config, model, query_)),
        num_parameters_(num_parameters(program_)) {}

  TrainResult run() {
    require_fits(program_, config_, model_, query_);
    const Tokenizer tokenizer = run_tokenizer(config_, model_.vocab);
    if (!config_.sample.prompt.empty()) {
      with_context(
          [] { return "sample.prompt"; },
          [&] { prompt_tokens(tokenizer, config_.sample.prompt, config_.data.sequence_length); });
    }
    sequences_ = std::make_unique<SequenceSource>(run_sequences(config_, tokenizer));
    sampler_ = std::make_unique<BatchSampler>(
        BatchSamplerOptions{.seed = static_cast<std::uint64_t>(config_.run.seed),
                            .num_sequences = sequences_->num_sequences(),
                            .global_batch = config_.train.global_batch,
                            .shuffle = config_.data.shuffle});
    executor_ = std::make_unique<Executor>(program_, *backend_);
    start_state();
    write_file_atomic(directory_ / "config.toml", to_toml(config_));
    keep_tokenizer();
    log_info(format("model: {} parameters; memory: {}; threads: {}",
                    format_grouped(num_parameters_),
                    format_bytes(program_.arena_bytes),
                    config_.run.threads));
    return loop();
  }

 private:
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
    const auto path = resume_from();
    if (path.has_value()) {
      const CheckpointReader reader(*path);
      reader.require_model(model_.json, state_tensors(*executor_));
      require_tokenizer(config_.tokenizer.path, *path, reader.meta());
      load_state(*executor_, reader);
      meta_ = reader.meta();
      TESSERA_REQUIRE(meta_.seed == static_cast<std::uint64_t>(config_.run.seed),
                      ErrorCode::kInvalidConfig,
                      "{} was made with run.seed = {}, found run.seed = {}",
                      path->string(),
                      meta_.seed,
                      config_.run.seed);
      log_info(format("resuming from {} after step {}", path->string(), meta_.step));
      warn_of_changes(*path);
    } else {
      const Graph graph = training_graph(
          model_, config_.train.microbatch, config_.data.sequence_length, config_.train.dtype);
      initialize_state(*executor_,
                       parameter_inits(graph),
                       static_cast<std::uint64_t>(config_.run.seed),
                       static_cast<int>(config_.run.threads));
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

  // tokenizer.path may lie in the run directory, or be there no more when the run is looked at.
  void keep_tokenizer() const {
    const std::filesystem::path copy = tokenizer_copy(directory_);
    std::error_code error;
    if (!std::filesystem::exists(copy, error) || tokenizer_checksum(copy) != meta_.tokenizer) {
      write_file_atomic(copy, read_file(config_.tokenizer.path));
    }
  }

  // The steps to come replace those that the run directory has after this one.
  void leave_other_branch() {
    for (const std::filesystem::path& path : set_aside_checkpoints(checkpoints(), meta_.step)) {
      log_info(format("set aside as {}: the run goes on from step {}", path.string(), meta_.step));
    }
  }

  TrainResult loop() {
    if (meta_.step >= config_.train.steps) {
      log_info(
          format("nothing to do: the run is at step {} of {}", meta_.step, config_.train.steps));
      return {.step = meta_.step, .checkpoint = saved_};
    }
    const StopSignal stop;
    leave_other_branch();
    MetricsWriter metrics(directory_ / "metrics.jsonl", meta_.step);
    Progress progress({.plain_every = config_.log.every});
    TrainResult result{.step = meta_.step};
    while (meta_.step < config_.train.steps && !stop.requested()) {
      const StepMetrics step = run_step();
      with_context([&] { return last_good_checkpoint(); }, [&] { metrics.write(step); });
      last_step_ = step.step;
      result.step = step.step;
      result.loss = step.loss;
      show(progress, step);
      note_applied(step, progress);
      if (config_.checkpoint.every > 0 && step.step % config_.checkpoint.every == 0) {
        save(progress);
      }
      if (!peak_flop_per_second_ && meta_.step < config_.train.steps) {
        // Not before the first step, which it would keep waiting.
        peak_flop_per_second_ = measure_peak(*backend_, config_.train.dtype);
      }
    }
    progress.finish();
    result.interrupted = meta_.step < config_.train.steps;
    if (meta_.step > saved_step_) {
      save(progress);
    }
    result.checkpoint = saved_;
    return result;
  }

  // Writes the inputs of every microbatch; returns the number of labels that count.
  std::int64_t load_batch(std::int64_t step) {
    const std::vector<std::int64_t> batch = sampler_->batch(step);
    const auto length = static_cast<std::size_t>(config_.data.sequence_length);
    std::int64_t valid = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto microbatch = static_cast<std::int64_t>(i) / config_.train.microbatch;
      const std::size_t row = i % static_cast<std::size_t>(config_.train.microbatch);
      const auto input = [&](std::string_view name) {
        const Binding& binding = find_binding(program_.inputs, name);
        return ints(executor_->bytes(binding, microbatch)).subspan(row * length, length);
      };
      sequences_->read(batch[i],
                       {.inputs = input("tokens"),
                        .labels = input("labels"),
                        .positions = input("positions"),
                        .documents = input("documents")});
      valid += sequences_->num_valid_labels(batch[i]);
    }
    return valid;
  }

  StepMetrics run_step() {
    const Clock::time_point start = Clock::now();
    const std::int64_t step = meta_.step + 1;
    const std::int64_t valid = load_batch(step);
    num_labels_ = valid;
    const double lr =
        learning_rate(config_.schedule, config_.optimizer.lr, config_.train.steps, step);
    executor_->set_scalar("seed",
                          valid > 0 ? static_cast<float>(1.0 / static_cast<double>(valid)) : 0.0F);
    executor_->set_scalar("learning_rate", static_cast<float>(lr));
    executor_->set_scalar("update_number", static_cast<float>(meta_.applied_steps + 1));
    executor_->set_scalar("apply", valid > 0 ? 1.0F : 0.0F);
    executor_->run_step();

    const std::int64_t tokens = config_.train.global_batch * config_.data.sequence_length;
    const double seconds = seconds_since(start);
    meta_.step = step;
    meta_.tokens_seen += tokens;
    return {.step = step,
            .loss = double{executor_->output_scalar("loss")} /
                    static_cast<double>(std::max<std::int64_t>(valid, 1)),
            .grad_norm = double{executor_->output_scalar("grad_norm")},
            .lr = lr,
            .tokens = meta_.tokens_seen,
            .step_seconds = seconds,
            .tokens_per_second = static_cast<double>(tokens) / seconds,
            .memory_bytes = executor_->memory_bytes()};
  }

  // A step that is not finite changed nothing; several in a row will not mend themselves.
  void note_applied(const StepMetrics& step, Progress& progress) {
    if (executor_->output_scalar("applied") != 0.0F) {
      ++meta_.applied_steps;
      applied_ = {.step = meta_.step, .tokens_seen = meta_.tokens_seen};
      not_finite_.clear();
      return;
    }
    progress.clear();
    if (num_labels_ == 0) {
      log_warning(format("step {} is not applied: none of its labels counts (data.mask_boundary)",
                         step.step));
      return;
    }
    not_finite_.push_back(step.step);
    log_warning(format(
        "step {} is not applied: loss {}, gradient norm {}", step.step, step.loss, step.grad_norm));
    if (not_finite_.size() >= kMaxNotFiniteInARow) {
      stop_diverged(progress);
    }
  }

  // Pruning might take the checkpoint that is good in truth, so that none is done here.
  [[noreturn]] void stop_diverged(Progress& progress) {
    const std::optional<std::filesystem::path> before = saved_;
    if (saved_step_ < applied_.step) {
      CheckpointMeta meta = meta_;
      meta.step = applied_.step;
      meta.tokens_seen = applied_.tokens_seen;
      write_checkpoint(meta, progress);
    }
    fail(ErrorCode::kDiverged,
         "steps {} to {} were not finite: training has diverged. Try a lower optimizer.lr, a "
         "longer schedule.warmup or a smaller optimizer.clip; {}{}",
         not_finite_.front(),
         not_finite_.back(),
         last_good_checkpoint(),
         before && before != saved_ ? format(", the one before it {}", before->string()) : "");
  }

  std::string last_good_checkpoint() const {
    return format("the last good checkpoint is {}",
                  saved_ ? saved_->string() : "the initial state");
  }

  void show(Progress& progress, const StepMetrics& step) {
    const double seconds = step_seconds_.add(step.step_seconds);
    const double tokens_per_second =
        static_cast<double>(config_.train.global_batch * config_.data.sequence_length) / seconds;
    const double flop_per_second =
        tokens_per_second *
        training_flop_per_token(model_, num_parameters_, config_.data.sequence_length);
    progress.update(
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

  std::filesystem::path write_checkpoint(const CheckpointMeta& meta, Progress& progress) {
    progress.clear();
    std::filesystem::path path = checkpoint_directory(checkpoints(), meta.step);
    save_checkpoint(path, meta, state_tensors(*executor_));
    saved_step_ = meta.step;
    saved_ = path;
    return path;
  }

  void save(Progress& progress) {
    const std::filesystem::path path = write_checkpoint(meta_, progress);
    prune_checkpoints(checkpoints(), static_cast<int>(config_.checkpoint.keep), path);
  }

  struct Applied {
    std::int64_t step = 0;
    std::int64_t tokens_seen = 0;
  };

  const RunConfig& config_;
  const ModelDescription& model_;
  std::optional<std::int64_t>& last_step_;
  std::filesystem::path directory_;
  std::unique_ptr<Backend> backend_;
  WorkspaceQuery query_;
  Program program_;
  std::int64_t num_parameters_;
  std::unique_ptr<SequenceSource> sequences_;
  std::unique_ptr<BatchSampler> sampler_;
  std::unique_ptr<Executor> executor_;
  CheckpointMeta meta_;
  std::int64_t saved_step_ = 0;
  std::optional<std::filesystem::path> saved_;  // the checkpoint of saved_step_; none: fresh
  std::int64_t num_labels_ = 0;                 // of the last step, those that count
  Applied applied_;                             // the last step that changed the state
  std::vector<std::int64_t> not_finite_;        // steps since then whose loss or gradient was not
  MovingMean step_seconds_{kSmoothedSteps};
  std::optional<double> peak_flop_per_second_;
};

}  // namespace

TrainResult train(const RunConfig& config, const ModelDescription& model) {
  const RunConfig resolved = resolve_run(config);
  const FileLock lock = open_directory(resolved.run.dir);
  std::optional<std::int64_t> last_step;
  return with_exit_record(
      resolved.run.dir, last_step, [&] { return Trainer(resolved, model, last_step).run(); });
}

}  // namespace tessera
