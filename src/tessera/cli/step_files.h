#pragma once

#include <filesystem>

#include "tessera/resolve/simulation_report.h"

namespace tessera {

// Files that `tessera simulate` writes; empty: none.
struct StepFiles {
  std::filesystem::path trace = {};  // chrome_json()
  std::filesystem::path gantt = {};  // draw_trace()

  bool has_any() const { return !trace.empty() || !gantt.empty(); }
};

// Errors: kInvalidConfig where a name does not end as its file's does.
void require_names(const StepFiles& files);

// Writes those that are asked for. Errors: kDeviceError.
void write_step_files(const SimulationReport& report, const StepFiles& files);

}  // namespace tessera
