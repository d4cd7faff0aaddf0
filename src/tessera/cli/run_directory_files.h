#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/simulate/trace.h"

namespace tessera {

// The files of the traces in a run's directory, by their steps: one, or one of each process of the
// run, by its first rank.
using TraceFiles = std::map<std::int64_t, std::map<std::int64_t, std::filesystem::path>>;

TraceFiles trace_files(const std::filesystem::path& run_dir);

// What all ranks did in a recorded step.
struct RecordedStep {
  std::int64_t step = 0;
  std::vector<std::string> sources;  // the file of each process of the trace
  StepTrace trace;
};

// The trace of `step`. Errors: kInvalidConfig where it was not recorded, which name the steps that
// were; kInvalidData where two processes are of the same rank, or one of several; those of
// load_trace().
RecordedStep recorded_step(const std::filesystem::path& run_dir, std::int64_t step);

// The step that was recorded last. Errors: as above.
std::int64_t last_recorded_step(const std::filesystem::path& run_dir);

}  // namespace tessera
