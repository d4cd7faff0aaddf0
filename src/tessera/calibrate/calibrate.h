#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tessera/calibrate/fit_machine.h"

namespace tessera {

struct CalibrateOptions {
  std::int64_t cores = 1;  // that runs may use
  std::int64_t ranks = 1;  // whose collectives are timed
  std::int64_t rounds = 5;
  std::string date = {};                                     // for what the file says of its origin
  std::function<void(std::string_view)> progress = nullptr;  // a line
};

struct Calibration {
  FittedMachine machine;
  // The middle half of the rounds over their median, in the mean; of memory, kernels or
  // collectives, the most.
  double spread = 0.0;
  std::int64_t rounds = 0;
};

// Times this machine's kernels and the collectives of threads, all of them in turn and that
// several times over, and fits a cluster file to them. `machine` is machine_cluster(). It takes
// about a minute. Errors: kInvalidArgument unless counts are at least 1; kOutOfMemory.
Calibration calibrate(const Cluster& machine, const CalibrateOptions& options);

// What was found, for people.
std::string calibration_text(const Calibration& calibration);

// Errors: kDeviceError where the machine was too busy to be measured, or is not as the formulas
// have it: what, by how much, and what to do.
void require_good(const Calibration& calibration);

}  // namespace tessera
