#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/config/run_config.h"
#include "tessera/plan/compile.h"
#include "tessera/program/program.h"
#include "tessera/program/space_traffic.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/runtime/program_memory.h"

namespace tessera {

// What a rank of a run takes, in bytes, known before it starts: the one that takes most, by which
// is decided whether the run fits.
struct RunMemory {
  // What lies in another space than the device's, and what a step moves.
  struct OtherSpace {
    std::int64_t bytes = 0;
    SpaceTraffic traffic = {};
  };

  std::vector<MemoryRow> categories;  // of the arena, each at its own peak in any program
  std::int64_t arena = 0;
  // What a save writes from that is not the arena: in the background, or of a device's in any way.
  std::int64_t checkpoint_copy = 0;
  bool on_device = false;  // the arena: then the copy does not stand beside it
  OtherSpace host = {};    // of a CPU's host: beside the arena
  OtherSpace file = {};
  // Where there are several pipeline ranks, what a rank of each takes in all, and of which the rest
  // of this tells.
  std::vector<std::int64_t> by_pipeline_rank = {};
  std::size_t pipeline_rank = 0;

  // Of the memory that the arena is in.
  std::int64_t total() const { return on_device ? arena : arena + checkpoint_copy + host.bytes; }
};

// `programs` are those of `run`. Of the ranks of one place along the pipeline the first takes most:
// what several hold it saves, and slices without padding. `on_device`: whether the arena is to lie
// on a device, of another machine as it may be.
RunMemory run_memory(const PlannedRun& run, const RunPrograms& programs, bool on_device);
RunMemory run_memory(const PlannedRun& run, const RunPrograms& programs);

// A line for each key of what is offloaded without effect: where all of it has to stay.
std::vector<std::string> idle_offloads(const RunPrograms& programs, const Plan& plan);

// As lines of text.
std::string memory_table(const RunMemory& memory);

// How many channels a rank of a run has ends of, the one that has most.
std::int64_t most_channels(const RunPrograms& programs);

// Throws kOutOfMemory where the token ids of a step alone take more than a rank may use, before
// anything is compiled: a program has a call for each microbatch.
void require_inputs_fit(const RunConfig& config, const Plan& plan, std::int64_t limit);

// Throws kOutOfMemory, with the table and what would fit, where a rank takes more than `limit`
// (memory_limit()); and where ranks with devices, of which `ranks` are on this machine, save more
// than the host has free.
void require_fits(const RunPrograms& programs,
                  const PlannedRun& run,
                  const RunConfig& config,
                  std::int64_t limit);

// The arenas of a rank; `programs` are those of `run`. Errors: those of Backend::allocate(), to
// kOutOfMemory with the table: others may have taken what was free when the plan was made; those of
// FileArena.
ProgramArenas allocate_arenas(Backend& backend,
                              const RunPrograms& programs,
                              const PlannedRun& run,
                              std::int64_t rank = 0);

}  // namespace tessera
