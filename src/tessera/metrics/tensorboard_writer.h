#pragma once

#include <cstdint>
#include <filesystem>

#include "tessera/metrics/metrics_writer.h"
#include "tessera/metrics/record_file.h"

namespace tessera {

// Takes the steps after `last_step` out of the event files that Tessera wrote in `directory`, and
// what a kill tore; files that keep no step are removed. Nothing is added to them any more, so that
// a TensorBoard that reads one right now never meets other bytes than it expects. What follows
// damage, which nobody can read, goes with a warning.
// Errors: kDeviceError naming the path and the system's reason.
void cut_event_files(const std::filesystem::path& directory, std::int64_t last_step);

// Writes a TensorBoard event file: `events.out.tfevents.<seconds>.tessera`, a new one for each
// start of a run, which begins with the start of a session. The curves have the names of the fields
// of metrics.jsonl, traffic "comm_bytes/<level>". Steps are appended as RecordFile does.
class TensorBoardWriter {
 public:
  // `wall_time` in seconds since 1970. The name sorts behind those of all older event files.
  // Errors: kDeviceError naming the path and the system's reason.
  TensorBoardWriter(const std::filesystem::path& directory,
                    std::int64_t resume_step,
                    double wall_time);

  // Errors: kDeviceError naming the path and the system's reason.
  void write(const StepMetrics& metrics, double wall_time);

  // The validation loss alone, of a step that was written without it. Errors: as write().
  void write_validation(std::int64_t step, double loss, double wall_time);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  RecordFile file_;
};

}  // namespace tessera
