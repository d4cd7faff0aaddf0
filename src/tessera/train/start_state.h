#pragma once

#include <cstdint>
#include <filesystem>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/communicator.h"
#include "tessera/runtime/executor.h"
#include "tessera/train/rank_trainer.h"
#include "tessera/train/run_saves.h"

namespace tessera {

// Whose state is filled: that of one rank of a run.
struct RankState {
  const RunSetup& setup;
  const World& world;
  Executor& executor;
  const StatePart& part;
};

// Fills a rank's state from a checkpoint of this run or of another with the same model; what the
// checkpoint says of itself. Errors: kInvalidConfig for another seed or other adapters;
// kInvalidData; as CheckpointReader.
CheckpointMeta load_checkpoint(const RankState& state, const std::filesystem::path& path);

// Fills it with what a run starts from: drawn from the seed, or model.weights. `says` where from,
// on one rank. Errors: as open_start_weights().
CheckpointMeta make_initial_state(const RankState& state, bool says);

// Warns of keys, of data, and of an order of sums that differ from those of `checkpoint`, which
// `meta` tells of: the run that goes on from it is not the one that was never stopped.
void warn_of_changes(const RunSetup& setup,
                     const CheckpointMeta& meta,
                     const std::filesystem::path& checkpoint);

// What every checkpoint of the run from now on says of it, in `meta`, and holds beside its tensors.
void describe_run(const RunSetup& setup, CheckpointMeta& meta, RunSaves& saves);

}  // namespace tessera
