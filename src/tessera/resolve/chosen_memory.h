#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/passes/memory/offload_states.h"
#include "tessera/resolve/make_plan.h"

namespace tessera {

// What "auto" of memory.recompute and of the memory.offload keys comes to where a rank has no room
// to keep all; how it does it is in the plan. Parts of time are those of a step's kernels, by what
// is known of the device, on the pipeline rank whose step gets longest.
struct ChosenMemory {
  double repeated = 0.0;                  // what is computed again,
  std::optional<double> for_states = {};  // what the step waits for states that move, and
  std::optional<double> for_layers = {};  // for activations; none: an earlier choice is taken
  OffloadedBytes moved = kNothingMoved;   // of a rank, the most
  std::int64_t all_bytes = 0;             // of the rank that needs most: where all is kept,
  std::int64_t bytes = 0;                 // as it was chosen

  double added() const { return repeated + for_states.value_or(0.0) + for_layers.value_or(0.0); }

  struct Search {
    std::int64_t least_bytes = 0;  // where layers keep the least and store nothing
    // Of added(), if each rank had 1e9 bytes more; none where even the least does not fit.
    std::optional<double> saved_by_gigabyte = {};
  };

  std::optional<Search> search = {};  // none where an earlier choice is taken
};

// The choice of the run, whose plan has it, in words: a line of text.
std::string to_string(const ChosenMemory& chosen, const PlannedRun& run);

}  // namespace tessera
