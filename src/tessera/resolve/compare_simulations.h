#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/resolve/compare_run.h"
#include "tessera/simulate/compare_traces.h"
#include "tessera/simulate/ticks.h"

namespace tessera {

// What `tessera simulate --json` has said of a step.
struct SimulationSummary {
  // What it is of: "cluster", "model", "mesh" and so on, each with its value.
  std::vector<std::pair<std::string, std::string>> facts;
  Ticks step = 0;
  // Where the time of the class that ends last goes; adds up to the step.
  std::vector<std::pair<std::string, Ticks>> causes;
};

// Reads that. Errors: kInvalidData naming the file and the member that is not as docs/formats.md
// has it.
SimulationSummary parse_simulation(std::string_view text, const std::string& file);

// The difference in time by causes.
Differences cause_differences(const SimulationSummary& a, const SimulationSummary& b);

// What differs in what they are of, then the difference in time by causes.
std::string compare_simulations_text(const SimulationSummary& a,
                                     const SimulationSummary& b,
                                     const CompareRows& rows);

}  // namespace tessera
