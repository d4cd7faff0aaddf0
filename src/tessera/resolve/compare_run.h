#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tessera/resolve/simulated_run.h"
#include "tessera/simulate/trace.h"

namespace tessera {

// How a comparison is printed.
struct CompareRows {
  std::size_t most = 12;   // in a table; the others are one row
  bool of_places = false;  // a row for each instruction of a call, in place of one for those alike
};

// What was recorded of a step.
struct MeasuredStep {
  const StepTrace& trace;
  std::vector<std::string> sources;    // the file of each of its processes
  std::optional<double> seconds = {};  // by the run's metrics, where they have the step
};

// What ranks of a run were seen to do in a step beside what they do when `run`, the simulation of
// their plan, says: in all, by kinds of work, and by ops and shapes. Errors: kInvalidConfig where
// the trace has a rank or an instruction that the run has not, or one less.
std::string compare_run_text(const MeasuredStep& step,
                             const SimulatedRun& run,
                             const CompareRows& rows);

// Two traces, in the same form.
std::string compare_traces_text(const StepTrace& a, const StepTrace& b, const CompareRows& rows);

// "4.2 % more", "0.3 % less", "as long": `b` beside `a`.
std::string percent_text(double a, double b);

}  // namespace tessera
