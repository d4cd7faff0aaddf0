#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/traffic.h"
#include "tessera/metrics/record_file.h"

namespace tessera {

// What a step takes and sends on a rank of a pipeline rank, by its program.
struct PipelineRankMetrics {
  std::int64_t memory_bytes = 0;
  Traffic comm_bytes = {};  // by level
};

// The measurements of one step; the field names are the keys in metrics.jsonl.
struct StepMetrics {
  std::int64_t step = 0;
  double loss = 0.0;  // mean over the step's valid tokens
  double grad_norm = 0.0;
  double lr = 0.0;
  std::int64_t tokens = 0;  // seen since step 1, this step included
  double step_seconds = 0.0;
  double tokens_per_second = 0.0;
  std::int64_t memory_bytes = 0;               // of the rank that takes most
  std::optional<double> validation_loss = {};  // where the run validated after the step
  Traffic comm_bytes = {};                     // that rank 0 sent, by level; empty for one rank
  // In their order, where there are several.
  std::vector<PipelineRankMetrics> pipeline_ranks = {};
};

// One JSON object on one line, without its end. Floats have enough digits to read back to the same
// double; NaN and infinities, which JSON lacks, are null.
std::string to_json(const StepMetrics& metrics);

// Appends a line a step to a JSONL file, as RecordFile does: a line that cannot be written comes
// with the next one.
class MetricsWriter {
 public:
  // Continues the file of a run resumed after `resume_step` (0: a new run): lines of later steps,
  // and a torn last line, are cut off, so that the file is that of an uninterrupted run.
  // Errors: kInvalidData naming the file and the place of a line that is not ours; kDeviceError
  // naming the path and the system's reason.
  MetricsWriter(const std::filesystem::path& path, std::int64_t resume_step);

  // Errors: kDeviceError naming the path and the system's reason.
  void write(const StepMetrics& metrics);

  // Tries to write what could not be. Errors: as write().
  void flush();

  bool has_unwritten() const { return file_.has_unwritten() || !owed_.empty(); }

  // Gives the line of `step` its validation loss, as if it had been written with it; where that
  // cannot be written, it comes with the next line. Errors: as write(); kInvalidArgument where no
  // line is of that step.
  void add_validation(std::int64_t step, double loss);

  // Appends `line`, that of `step` as another rank has kept it, where the file ends before it.
  // Errors: as write(); kInvalidData where the line is not of that step.
  void make_up(std::int64_t step, std::string_view line);

 private:
  void write_owed();
  void reopen();

  std::filesystem::path path_;
  RecordFile file_;
  std::map<std::int64_t, double> owed_;  // validation losses by step
};

}  // namespace tessera
