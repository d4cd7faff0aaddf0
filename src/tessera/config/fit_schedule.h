#pragma once

#include <cstdint>

#include "tessera/config/run_config.h"

namespace tessera {

// What a run of that many steps takes where nobody says more: the usual warmup, or what the decay
// leaves; and the usual share of decay, or what the warmup, if there is room for it, leaves.
std::int64_t usual_warmup(const Schedule& schedule, std::int64_t num_steps);
double usual_decay_ratio(const Schedule& schedule, std::int64_t num_steps);

// What nobody named of the schedule gives way to what was named: a run may be shorter than the
// usual warmup and decay. The warmup of a file gives way too, with a warning, since files are tried
// with fewer steps; what the command line names stays as it is.
void fit_schedule(RunConfig& config);

// The same of the usual warmup in a config that a program has filled, which names no key.
void fit_usual_warmup(RunConfig& config);

}  // namespace tessera
