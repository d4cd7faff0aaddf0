#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tessera/metrics/metrics_writer.h"
#include "tessera/metrics/moving_mean.h"
#include "tessera/metrics/progress.h"
#include "tessera/metrics/tensorboard_writer.h"
#include "tessera/resolve/predicted_step.h"
#include "tessera/train/predicted_pace.h"
#include "tessera/train/trainer.h"

namespace tessera {

// Where a run's metrics lie.
std::filesystem::path metrics_file(const std::filesystem::path& run_dir);

// Where a copy of its cluster.file lies, for what is said of the run elsewhere or later.
std::filesystem::path cluster_copy(const std::filesystem::path& run_dir);

// Whether metrics.jsonl in the run's directory has a line of `step` that lacks the validation loss:
// the run was stopped in that validation.
bool lacks_validation(const std::filesystem::path& run_dir, std::int64_t step);

// each(step, loss) for the validation losses that metrics.jsonl has; a run without it has none.
void for_each_validation(const std::filesystem::path& run_dir,
                         const std::function<void(std::int64_t step, double loss)>& each);

// What rank 0 keeps and shows of a session of the run: metrics.jsonl, TensorBoard's events,
// sessions.jsonl, the progress on stderr. Errors: kDeviceError and kInvalidData of these files when
// it is made. Later on what cannot be written is warned of, and tried again with the next step:
// a disk that is full for a while must not end a run.
class RunRecord {
 public:
  // What it must know of the run.
  struct Facts {
    std::filesystem::path run_dir;
    std::int64_t num_steps = 0;
    std::int64_t tokens_per_step = 0;
    std::int64_t parameters = 0;
    double flop_per_token = 0;
    std::string validation = {};  // describe_validation()
    PredictedStep predicted_step = {};
    std::int64_t plain_every = 10;  // log.every
    bool tensorboard = true;        // log.tensorboard
  };

  // Of the steps after `step`: lines of later ones are cut off.
  RunRecord(Facts facts, std::int64_t step);

  // The progress, beside the machine's peak where that is known.
  void show(const StepMetrics& step, std::optional<double> peak_flop_per_second);
  void show_validation(std::int64_t done, std::int64_t total);

  // A line of its own on stderr, above the progress.
  void inform(const std::string& message);
  void warn(const std::string& message);

  // Before others write to stderr.
  void clear_progress() { progress_.clear(); }

  void write(const StepMetrics& step);

  // Takes over the line of `step` that a rank has left in `checkpoint` for a rank 0 that was killed
  // before it came to write it.
  void make_up(const std::filesystem::path& checkpoint, std::int64_t step);

  // Of the last step that was written.
  void write_validation(std::int64_t step, double loss);

  // The last step's progress stays on stderr.
  void finish_progress() { progress_.finish(); }

  void end(const TrainResult& result);

 private:
  // body(), whose errors are warned of: once until it succeeds again.
  template <class Body>
  void keep_trying(const Body& body);

  Facts facts_;
  MetricsWriter metrics_;
  std::unique_ptr<TensorBoardWriter> events_;  // with log.tensorboard
  Progress progress_;
  MovingMean step_seconds_;
  PredictedPace pace_;
  bool is_failing_ = false;
};

}  // namespace tessera
