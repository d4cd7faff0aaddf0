#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/metrics/metrics_writer.h"
#include "tessera/train/rank_trainer.h"
#include "tessera/train/run_record.h"
#include "tessera/train/run_saves.h"

namespace tessera {

// A rank's part of the run's record. Rank 0 keeps and shows it, once it is open; every rank has
// the last step's line until it is written, since rank 0 may fail before that. Errors: as
// RunRecord.
class RankRecord {
 public:
  // `leads`: on rank 0.
  explicit RankRecord(bool leads) : leads_(leads) {}

  // Opens it as open_record() does, on rank 0 alone.
  void open(const RunSetup& setup, const CheckpointMeta& meta, RunSaves& saves);

  // A step has ended; `peak_flop_per_second` is the machines', where it is known.
  void note(const StepMetrics& step, std::optional<double> peak_flop_per_second);

  // Writes the line of `step`. Errors name the last good one of `saves`.
  void write(const StepMetrics& step, const RunSaves& saves);

  // Writes the last step's line, if that is still to be done.
  void write_rest(const RunSaves& saves);

  // The last step's line, if it is that of `step` and unwritten here; empty otherwise.
  std::string line_of(std::int64_t step) const;

  // Print a line on stderr, on rank 0; inform() does so only once the record is open.
  void inform(const std::string& message);
  void warn(const std::string& message);

  void show_validation(std::int64_t done, std::int64_t total);

  // Adds the loss to the line of `step`, the last one. Returns whether this rank keeps the record.
  bool write_validation(std::int64_t step, double loss);

  // Clears the progress, before others write to stderr.
  void clear_progress();

  // Leaves the last step's progress on stderr.
  void finish_progress();

  void end(const TrainResult& result);

 private:
  bool leads_;
  std::unique_ptr<RunRecord> record_;     // null until it is open
  std::optional<StepMetrics> unwritten_;  // the last step's, until its line is in the metrics
};

}  // namespace tessera
