#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/resolve/simulation_report.h"

namespace tessera {

// The values that a key of the run file is to have, one after the other.
struct Sweep {
  std::string key;
  std::vector<std::string> values;
};

// "parallel.ranks=8..16384", which doubles from the first to the last number, or "KEY=A,B,C".
// Errors: kInvalidConfig quoting the text.
Sweep parse_sweep(std::string_view text);

// What is said of a run with one of the values.
struct SweepRow {
  std::string value;
  std::string problem = {};   // why there is no such run
  bool lacks_memory = false;  // which is memory; else:
  std::int64_t ranks = 0;
  double seconds = 0.0;  // of a step
  double tokens_per_second = 0.0;
  double exposed = 0.0;           // seconds of collectives and transfers that nothing hides
  std::int64_t memory_bytes = 0;  // of a rank
  bool fits = true;
  std::string constants = {};  // as of SimulationReport
  bool is_estimate = false;
  std::string more = {};  // said of it at the end of its line
};

// A row of what `row` makes; with the problem where it throws kInvalidConfig or kOutOfMemory.
SweepRow sweep_row(std::string value, const std::function<SweepRow()>& row);
SweepRow sweep_row(const SimulationReport& report);

// Errors: where no row has a run, with what the first one says; kOutOfMemory where all lack memory,
// else kInvalidConfig. `option` and `what` begin the message.
void require_some_run(std::string_view option,
                      std::string_view what,
                      const std::vector<SweepRow>& rows);

// Tokens/s of a rank, over those of the first row with a run.
double efficiency(const std::vector<SweepRow>& rows, const SweepRow& row);

// A table for people, with the efficiency of each row, and `more` above what rows say beyond; and
// as JSON.
std::string sweep_text(const Sweep& sweep,
                       const std::vector<SweepRow>& rows,
                       std::string_view more = "");
std::string sweep_json(const Sweep& sweep, const std::vector<SweepRow>& rows);

}  // namespace tessera
