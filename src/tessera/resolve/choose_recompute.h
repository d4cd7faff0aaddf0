#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/ir/dtype.h"
#include "tessera/mesh/device_spec.h"
#include "tessera/passes/memory/recompute_choices.h"
#include "tessera/plan/compile.h"
#include "tessera/resolve/make_plan.h"

namespace tessera {

// What memory.recompute = "auto" comes to where a rank has no room to keep all; its rules are the
// plan's.
struct ChosenRecompute {
  double repeated = 0.0;       // over the time of a microbatch's kernels, on the pipeline rank that
                               // repeats most; by what is known of the device
  std::int64_t all_bytes = 0;  // of the rank that needs most: where all is kept,
  std::int64_t bytes = 0;      // as it was chosen

  struct Search {
    std::int64_t least_bytes = 0;  // where inputs of layers and sums of ranks alone are kept
    // Of `repeated`, if each rank had 1e9 bytes more; none where even the least does not fit.
    std::optional<double> saved_by_gigabyte = {};
  };

  std::optional<Search> search = {};  // none where an earlier choice is taken
};

// What a rank may use, and whether that is a device's (run_memory()).
struct RankRoom {
  std::int64_t limit = 0;
  bool on_device = false;
};

// Keeps as much as a rank has room for, so that backward repeats as little as can
// be: of each layer what is best in both bytes and time (recompute_choices()), and of all layers of
// a pipeline rank what costs least within its bytes. How many those are is asked of the compiled
// programs, which are exact. What ranks sum is repeated only where nothing else fits; where that
// does not fit either, the rules are those that need least. `programs` are those of `run`; both
// become those of what is chosen. Nothing where the run says itself what it computes again, or
// fits as it is. What an earlier start chose is taken where it fits and there is not much more room
// than then. `dump`: as compile_run().
std::optional<ChosenRecompute> fit_recompute(PlannedRun& run,
                                             RunPrograms& programs,
                                             const DeviceSpec& device,
                                             const RankRoom& room,
                                             const std::filesystem::path& dump = {});

// What of the free memory of a machine, which other programs use, too, a choice may count on.
std::int64_t room_beside_others(std::int64_t free);

// What nodes take on the device, in seconds; where nobody says how fast it is, on a usual core.
NodeSeconds kernel_seconds(const DeviceSpec& device, DType dtype);

// The time of what a graph does for each microbatch.
double microbatch_seconds(const Graph& graph, const NodeSeconds& seconds);

// The choice in words, with the run's rules: a line of text.
std::string to_string(const ChosenRecompute& chosen, const RecomputeRules& rules);

}  // namespace tessera
