#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/config/run_config.h"
#include "tessera/models/model.h"
#include "tessera/passes/lower.h"
#include "tessera/program/program.h"
#include "tessera/train/step_program.h"

namespace tessera {

// What a rank of a run takes, in bytes, known before it starts.
struct RunMemory {
  std::vector<MemoryRow> categories;  // of the arena, each at its own peak in any program
  std::int64_t arena = 0;
  // What a save writes from that is not the arena: in the background, or of a device's in any way.
  std::int64_t checkpoint_copy = 0;
  bool on_device = false;  // the arena: then the copy does not stand beside it

  // Of the memory that the arena is in.
  std::int64_t total() const { return on_device ? arena : arena + checkpoint_copy; }
};

// Whether any checkpoint of this run is written beside the training.
bool saves_in_background(const RunConfig& config);

// Of rank 0, which takes most; `programs` are those of `config`.
RunMemory run_memory(const RunConfig& config,
                     const ModelDescription& model,
                     const RunPrograms& programs);

// As lines of text.
std::string memory_table(const RunMemory& memory);

// Throws kOutOfMemory, with the table and what would fit, where a rank takes more than
// memory_limit(); and where ranks with devices save more than the host has free.
void require_fits(const RunPrograms& programs,
                  const RunConfig& config,
                  const ModelDescription& model,
                  const WorkspaceQuery& workspace_bytes);

// The arena of `programs`, which are those of `config`. Errors: those of Backend::allocate(), to
// kOutOfMemory with the table: others may have taken what was free when the plan was made.
std::unique_ptr<Arena> allocate_arena(Backend& backend,
                                      const RunPrograms& programs,
                                      const RunConfig& config,
                                      const ModelDescription& model);

}  // namespace tessera
