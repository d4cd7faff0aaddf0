#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "tessera/mesh/cluster.h"
#include "tessera/plan/compile.h"
#include "tessera/resolve/chosen_memory.h"
#include "tessera/resolve/make_plan.h"

namespace tessera {

// Bytes/s of a rank.
struct MoveRates {
  double disk = kUsualDisk;           // to and from a file, in all
  double host_link = kUsualHostLink;  // between a device and its host, each way
};

// Of so many ranks that share a machine's disk. 0 is not known: usual.
MoveRates move_rates(const DeviceSpec& device, double disk_bandwidth, std::int64_t ranks);

// What a rank may use, and whether that is a device's (run_memory()).
struct RankRoom {
  std::int64_t limit = 0;
  bool on_device = false;
  MoveRates rates = {};
};

// Keeps as much as a rank has room for, so that a step takes as little longer as can be. First what
// of the states lies elsewhere is estimated together with what layers are to do (choose_states());
// then, with these states, of each layer what is best in both bytes and time (recompute_choices()),
// and of all layers of a pipeline rank what costs least within its bytes. How many those are is
// asked of the compiled programs, which are exact; where they do not fit, more states move; where
// there is room left, fewer. What ranks sum is repeated only where nothing else fits; where that
// does not fit either, all is done that needs least. `programs` are those of `run`; both become
// those of what is chosen. Nothing where the run says itself what it keeps where, or fits as it is.
// What an earlier start chose is taken where it fits and there is not much more room than then.
// `dump`: as compile_run().
std::optional<ChosenMemory> fit_memory(PlannedRun& run,
                                       RunPrograms& programs,
                                       const DeviceSpec& device,
                                       const RankRoom& room,
                                       const std::filesystem::path& dump = {});

// What of the free memory of a machine, which other programs use, too, a choice may count on.
std::int64_t room_beside_others(std::int64_t free);

// What of a run's plan was chosen, where a rank may use `limit` bytes: of layers whose rules the
// run says itself, what they store alone.
MemoryChoice choice_of(const PlannedRun& run, const ChosenMemory& chosen, std::int64_t limit);

}  // namespace tessera
