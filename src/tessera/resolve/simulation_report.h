#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/resolve/sampled_steps.h"
#include "tessera/resolve/simulated_run.h"
#include "tessera/simulate/attribution.h"

namespace tessera {

// How much shorter the step is where one thing is twice as good.
struct Doubled {
  std::string what;      // "memory bandwidth", "bandwidth of level node"
  double seconds = 0.0;  // of the step then
};

// Everything that `tessera simulate` says of a run, before it is written down.
struct SimulationReport {
  const SimulatedRun& run;
  StepTimeline timeline;
  double bound = 0.0;                    // seconds of the step where nothing shares anything
  std::vector<Attribution> causes = {};  // by class
  std::optional<double> tokens = {};     // that the run trains on
  std::vector<Doubled> doubled = {};     // what helps most first; none unless asked for
  std::optional<SampledSteps> samples = {};
  std::string software = {};  // traits and stack, in words; empty: our own

  // The class that ends last.
  std::size_t critical() const;
  double seconds() const;

  // These are of a run that has facts(). FLOP/s of a device are those that the model asks for,
  // recomputation left out (training_flop_per_token()).
  double tokens_per_second() const;
  double flops() const;
};

// Simulates the step. `doubles`: and again with twice of each resource.
SimulationReport make_simulation_report(const SimulatedRun& run,
                                        const SimulationOptions& options,
                                        bool doubles);

// Where the constants of a cluster's file are from, and how near they come, in words.
std::string constants_text(const Cluster& cluster);

// As text for people, and as JSON (docs/formats.md).
std::string simulation_text(const SimulationReport& report);
std::string simulation_json(const SimulationReport& report);

}  // namespace tessera
