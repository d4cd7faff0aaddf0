#include "tessera/train/run_record.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <span>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/report/metrics_table.h"
#include "tessera/train/session_log.h"

namespace tessera {
namespace {

constexpr std::size_t kSmoothedSteps = 10;

// Seconds since 1970.
double wall_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

std::filesystem::path metrics_file(const std::filesystem::path& run_dir) {
  return run_dir / "metrics.jsonl";
}

std::filesystem::path cluster_copy(const std::filesystem::path& run_dir) {
  return run_dir / "cluster.toml";
}

bool lacks_validation(const std::filesystem::path& run_dir, std::int64_t step) {
  const std::filesystem::path path = metrics_file(run_dir);
  if (!std::filesystem::exists(path)) {
    return false;
  }
  const MetricsTable metrics = read_metrics(path, BrokenLines::kSkip);
  const auto line = std::ranges::find(metrics.steps, step);
  const std::span<const double> losses = metrics.column("validation_loss");
  return line != metrics.steps.end() &&
         (losses.empty() ||
          std::isnan(losses[static_cast<std::size_t>(line - metrics.steps.begin())]));
}

void for_each_validation(const std::filesystem::path& run_dir,
                         const std::function<void(std::int64_t step, double loss)>& each) {
  const std::filesystem::path path = metrics_file(run_dir);
  if (!std::filesystem::exists(path)) {
    return;
  }
  const MetricsTable metrics = read_metrics(path, BrokenLines::kSkip);
  const std::span<const double> losses = metrics.column("validation_loss");
  for (std::size_t i = 0; i < losses.size(); ++i) {
    each(metrics.steps[i], losses[i]);
  }
}

RunRecord::RunRecord(Facts facts, std::int64_t step)
    : facts_(std::move(facts)),
      metrics_(metrics_file(facts_.run_dir), step),
      progress_({.plain_every = facts_.plain_every}),
      step_seconds_(kSmoothedSteps),
      pace_(facts_.predicted_step.seconds) {
  cut_event_files(facts_.run_dir, step);
  if (facts_.tensorboard) {
    events_ = std::make_unique<TensorBoardWriter>(facts_.run_dir, step, wall_time());
  }
  log_session_start(facts_.run_dir,
                    {.step = step,
                     .parameters = facts_.parameters,
                     .validation = facts_.validation,
                     .predicted_step = facts_.predicted_step.seconds,
                     .constants = facts_.predicted_step.constants});
}

void RunRecord::show(const StepMetrics& step, std::optional<double> peak_flop_per_second) {
  const double seconds = step_seconds_.add(step.step_seconds);
  const double tokens_per_second = static_cast<double>(facts_.tokens_per_step) / seconds;
  const double flop_per_second = tokens_per_second * facts_.flop_per_token;
  progress_.update({.step = step.step,
                    .num_steps = facts_.num_steps,
                    .loss = step.loss,
                    .grad_norm = step.grad_norm,
                    .tokens_per_second = tokens_per_second,
                    .flop_per_second = flop_per_second,
                    .share_of_peak = peak_flop_per_second
                                         ? std::optional(flop_per_second / *peak_flop_per_second)
                                         : std::nullopt,
                    .memory_bytes = step.memory_bytes,
                    .seconds_left = seconds * static_cast<double>(facts_.num_steps - step.step)});
  if (const auto word = pace_.add(step.step_seconds)) {
    word->is_warning ? warn(word->text) : inform(word->text);
  }
}

void RunRecord::show_validation(std::int64_t done, std::int64_t total) {
  progress_.show_activity(format("validation {}/{}", done, total));
}

void RunRecord::inform(const std::string& message) {
  progress_.clear();
  log_info(message);
}

void RunRecord::warn(const std::string& message) {
  progress_.clear();
  log_warning(message);
}

template <class Body>
void RunRecord::keep_trying(const Body& body) {
  try {
    body();
    if (is_failing_) {
      is_failing_ = false;
      inform(format("what could not be written to {} is there now", facts_.run_dir.string()));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDeviceError) {
      throw;
    }
    if (!is_failing_) {
      is_failing_ = true;
      warn(format("{}: training goes on, the lines are kept in memory and tried again",
                  error.what()));
    }
  }
}

void RunRecord::write(const StepMetrics& step) {
  keep_trying([&] {
    // Each has the step, even where the other one fails.
    std::exception_ptr failure;
    try {
      metrics_.write(step);
    } catch (const Error&) {
      failure = std::current_exception();
    }
    if (events_) {
      events_->write(step, wall_time());
    }
    if (failure) {
      std::rethrow_exception(failure);
    }
  });
}

void RunRecord::make_up(const std::filesystem::path& checkpoint, std::int64_t step) {
  const std::filesystem::path line = metrics_file(checkpoint);
  std::error_code error;
  if (!std::filesystem::exists(line, error)) {
    return;
  }
  // No manifest lists it: whatever it is, the run goes on.
  try {
    metrics_.make_up(step, read_file(line));
  } catch (const Error& problem) {
    warn(problem.what());
  }
}

void RunRecord::write_validation(std::int64_t step, double loss) {
  keep_trying([&] {
    metrics_.add_validation(step, loss);
    if (events_) {
      events_->write_validation(step, loss, wall_time());
    }
  });
}

void RunRecord::end(const TrainResult& result) {
  keep_trying([&] { metrics_.flush(); });
  try {
    log_session_end(
        facts_.run_dir,
        {.step = result.step, .stopped = result.interrupted, .pipeline = result.pipeline});
  } catch (const Error& error) {
    warn(error.what());
  }
  if (metrics_.has_unwritten()) {
    warn(format("the last steps are not in {}/metrics.jsonl", facts_.run_dir.string()));
  }
}

}  // namespace tessera
