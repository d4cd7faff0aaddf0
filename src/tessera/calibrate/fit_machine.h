#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/calibrate/machine_kernels.h"
#include "tessera/cost/fit.h"
#include "tessera/mesh/cluster.h"

namespace tessera {

// A kernel and what all cores of a machine together took for it.
struct MeasuredKernel {
  KernelFamily family = KernelFamily::kStream;
  DType dtype = DType::kF32;
  std::string what;
  Works works;
  double bytes = 0.0;  // of its operands and results
  double seconds = 0.0;
};

// What was measured of a machine.
struct MachineMeasures {
  std::int64_t cores = 1;  // that are busy with each kernel
  std::vector<MeasuredKernel> kernels = {};
  double core_bandwidth = 0.0;   // bytes/s of a stream on one core, alone
  double host_bandwidth = 0.0;   // on all cores
  double cache_bytes = 0.0;      // of the last cache, of all cores
  double cache_bandwidth = 0.0;  // of a stream within it, on all cores
  std::vector<MeasuredLeg> legs = {};
};

// How near a cluster file comes to what was measured.
struct Residual {
  std::string of;       // "products in f32"
  std::size_t num = 0;  // of points
  FitErrors errors = {};
  std::string worst = {};  // what has the largest error
};

struct FittedMachine {
  Cluster cluster;
  std::vector<Residual> residuals;
};

// `machine` (machine_cluster()) with figures and constants of a core, of the host and of its levels
// that come nearest to the measures. A peak is the fastest product's, or what the fitted curve
// makes of products without ends. Errors: kInvalidArgument without products of f32, attention or
// streams.
FittedMachine fit_machine(const Cluster& machine, const MachineMeasures& measures);

}  // namespace tessera
